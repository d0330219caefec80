// A warp on the host, for device headers whose lanes meet by shuffles: 32 fibers that take turns. A lane that comes to a
// shuffle writes its value down and lets the others go on; when its turn comes again, all of them have.
#include <ucontext.h>

#include <functional>
#include <vector>

#define FP8GEMM_DEVICE inline

namespace warp {

constexpr unsigned kLanes = 32;
constexpr unsigned long kStackBytes = 64 << 10;

inline unsigned current;           // whose turn it is
inline unsigned slots[2][kLanes];  // of the last two shuffles: a lane may be one ahead of others
inline unsigned turns[kLanes];     // at how many shuffles a lane has been
inline ucontext_t contexts[kLanes], scheduler;
inline bool ended[kLanes];
inline std::function<void(unsigned)> body;

inline const unsigned* exchange(unsigned value) {
    const unsigned lane = current;
    unsigned* values = slots[turns[lane]++ % 2];
    values[lane] = value;
    swapcontext(&contexts[lane], &scheduler);
    return values;
}

inline void enter() {
    body(current);
    ended[current] = true;
    swapcontext(&contexts[current], &scheduler);
}

// Runs `lane_body` on every lane, and says whether all of them came to the same number of shuffles.
inline bool run(const std::function<void(unsigned)>& lane_body) {
    static std::vector<char> stacks(kLanes * kStackBytes);
    body = lane_body;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        turns[lane] = 0;
        ended[lane] = false;
        getcontext(&contexts[lane]);
        contexts[lane].uc_stack.ss_sp = stacks.data() + lane * kStackBytes;
        contexts[lane].uc_stack.ss_size = kStackBytes;
        contexts[lane].uc_link = nullptr;
        makecontext(&contexts[lane], enter, 0);
    }
    bool together = true;
    while (together && !ended[0]) {
        for (current = 0; current < kLanes; ++current) {
            swapcontext(&scheduler, &contexts[current]);
            together = together && turns[current] == turns[0] && ended[current] == ended[0];
        }
    }
    return together;
}

}  // namespace warp

inline unsigned __shfl_sync(unsigned, unsigned value, unsigned lane) {
    return warp::exchange(value)[lane % warp::kLanes];
}

inline unsigned __shfl_up_sync(unsigned, unsigned value, unsigned distance) {
    const unsigned lane = warp::current;
    return warp::exchange(value)[lane < distance ? lane : lane - distance];
}

inline unsigned __ballot_sync(unsigned, bool value) {
    const unsigned* values = warp::exchange(value);
    unsigned bits = 0;
    for (unsigned lane = 0; lane < warp::kLanes; ++lane) {
        bits |= values[lane] << lane;
    }
    return bits;
}

inline unsigned __popc(unsigned value) {
    return static_cast<unsigned>(__builtin_popcount(value));
}
