// Runs a kernel on what hopper.hpp emulates, CTA after CTA.
#pragma once

#include "hopper.hpp"

namespace emulated {

inline void enter() {
    body(body_params);
    Thread& thread = self();
    if (!thread.stores.empty() || !thread.open_stores.empty()) {
        require(false, "ends before its bulk stores have read shared memory");
    }
    thread.ended = true;
    ++events;
    yield();
}

inline void start_cta() {
    std::memset(shared_bytes, 0xff, sizeof(shared_bytes));
    loads.clear();
    barriers.clear();
    meetings.clear();
    barriers_visible = false;
    free_registers = 65536 - int64_t{kLaunchRegisters} * count;
    threads = std::vector<Thread>(count);
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
/// One warp falls behind the others.
inline bool play_round(bool everything, uint32_t slow_warp) {
    bool left = false;
    for (uint32_t warp = 0; warp < count / 32; ++warp) {
        const bool runs = everything || draw() % (warp == slow_warp ? 32 : 2) == 0;
        for (uint32_t i = warp * 32; i < warp * 32 + 32; ++i) {
            left |= !threads[i].ended;
            if (runs && !threads[i].ended && failure.empty()) {
                current = i;
                swapcontext(&scheduler, &threads[i].context);
            }
        }
    }
    for (size_t i = loads.size(); i-- > 0;) {
        if (draw() % 4 == 0) {
            deliver(i);
        }
    }
    return left;
}

/// What is wrong, in words; nothing if the kernel ended as it should.
inline const char* run(void (*kernel)(const void*), const void* params, uint32_t grid, uint32_t block, uint32_t seed) {
    body = kernel;
    body_params = params;
    ctas = grid;
    count = block;
    draw.seed(seed);
    failure.clear();
    for (cta = 0; cta < grid && failure.empty(); ++cta) {
        start_cta();
        const uint32_t slow_warp = draw() % (block / 32);
        bool left = true;
        while (left && failure.empty()) {
            const uint64_t before = events;
            left = play_round(false, slow_warp);
            if (left && events == before) {
                left = play_round(true, slow_warp);
                if (left && events == before && !loads.empty()) {
                    deliver(draw() % loads.size());
                } else if (left && events == before && failure.empty()) {
                    failure = "CTA " + std::to_string(cta) + ": every thread waits, and no copy is under way";
                }
            }
        }
        if (failure.empty() && !loads.empty()) {
            failure = "a CTA ends while copies to it are under way";
        }
    }
    return failure.c_str();
}

}  // namespace emulated
