// Runs a kernel on what hopper.hpp emulates, cluster after cluster.
#pragma once

#include "boxes.hpp"

namespace emulated {

inline void enter() {
    body(body_params);
    Thread& thread = self();
    if (!thread.stores.empty() || !thread.open_stores.empty()) {
        require(false, "ends before its bulk stores have read shared memory");
    }
    thread.ended = true;
    if (--of_cluster[rank()].left == 0 && failure.empty()) {
        const uint32_t mine = rank();
        for (const Copy& load : loads) {
            require((load.ctas >> mine & 1) == 0, "ends while copies to it are under way");
        }
        for (const Sums& sums : sums_sent) {
            require(sums.place >> 24 != mine + 1, "ends while sums are on their way to it");
        }
    }
    ++events;
    yield();
}

inline void start_cluster() {
    std::memset(memory, 0xff, sizeof(memory));
    loads.clear();
    sums_sent.clear();
    barriers.clear();
    meetings.clear();
    cluster_arrivals = cluster_phases = 0;
    of_cluster.assign(cluster_size, {0, count});
    threads = std::vector<Thread>(cluster_size * count);
    for (Thread& thread : threads) {
        thread.stack.resize(64 << 10);
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, enter, 0);
    }
}

/// A round: some warps run until each of their threads waits, and some copies arrive. Returns whether threads are left.
/// One warp falls behind the others, and a CTA may not have begun.
inline bool play_round(bool everything, uint32_t slow_warp, uint32_t late_cta) {
    bool left = false;
    for (uint32_t warp = 0; warp < threads.size() / 32; ++warp) {
        const bool begun = warp / (count / 32) != late_cta;
        const bool runs = begun && (everything || draw() % (warp == slow_warp ? 32 : 2) == 0);
        for (uint32_t i = warp * 32; i < warp * 32 + 32; ++i) {
            left |= !threads[i].ended;
            if (runs && !threads[i].ended && failure.empty()) {
                current = i;
                in_thread = true;
                swapcontext(&scheduler, &threads[i].context);
                in_thread = false;
            }
        }
    }
    for (size_t i = loads.size(); i-- > 0;) {
        if (draw() % 4 == 0) {
            deliver(i);
        }
    }
    for (size_t i = sums_sent.size(); i-- > 0;) {
        if (draw() % 4 == 0) {
            deliver_sums(i);
        }
    }
    return left;
}

/// What is wrong, in words; nothing if the kernel ended as it should.
inline const char* run(void (*kernel)(const void*), const void* params, uint32_t grid, uint32_t cluster, uint32_t block,
                       uint32_t seed) {
    body = kernel;
    body_params = params;
    ctas = grid;
    count = block;
    cluster_size = cluster;
    draw.seed(seed);
    failure.clear();
    brought.clear();
    added_to.clear();
    for (cta = 0; cta < grid && failure.empty(); cta += cluster) {
        start_cluster();
        const uint32_t slow_warp = draw() % (cluster * block / 32);
        uint32_t late_cta = cluster > 1 ? draw() % (cluster + 1) : cluster;
        bool left = true;
        while (left && failure.empty()) {
            const uint64_t before = events;
            left = play_round(false, slow_warp, late_cta);
            if (left && events == before) {
                left = play_round(true, slow_warp, late_cta);
                if (left && events == before && late_cta != cluster) {
                    late_cta = cluster;
                } else if (left && events == before && !loads.empty()) {
                    deliver(draw() % loads.size());
                } else if (left && events == before && !sums_sent.empty()) {
                    deliver_sums(draw() % sums_sent.size());
                } else if (left && events == before && failure.empty()) {
                    failure = "CTA " + std::to_string(cta) + ": every thread waits, and no copy is under way";
                }
            }
        }
    }
    return failure.c_str();
}

}  // namespace emulated
