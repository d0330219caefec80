// The consumer: a warpgroup that multiplies K blocks on the tensor cores and promotes the results.
//
// The tensor core accumulates with about 14 fraction bits, so nothing may stay in it for longer than one K block.
// Promotion adds the block's sums, times the block's scales, to FP32 accumulators:
//     s = scale_a * scale_b;  acc = fma(s, block_sum, acc)
// in this association, with the K blocks of a share in ascending order: it is part of the library's contract. What a
// scale of B covers, and where it comes from, is the policy of Config::kScaling.
//
// A wave in flight may not cross the back edge of a loop (the assembler would then serialise all of them), so the loop
// goes round in chunks of K blocks, with nothing in flight between two of them. Every second warpgroup changes chunks at
// other times: of two, one always has two waves queued when the other has none. (Where a chunk is a turn of the ring, they
// need not.) Where K ends inside a chunk, a short one stops there, or K blocks go one by one. How long they are:
// chunk_plan.cuh; their order: chunk_loops.cuh; the order inside them: pipelined.cuh.
#pragma once

#include "fp8gemm/mainloop/block_scales.cuh"
#include "fp8gemm/mainloop/chunk_loops.cuh"
#include "fp8gemm/mainloop/chunk_plan.cuh"
#include "fp8gemm/mainloop/first_waves.cuh"
#include "fp8gemm/mainloop/next_stage.cuh"
#include "fp8gemm/mainloop/release.cuh"
#include "fp8gemm/mainloop/row_scales.cuh"
#include "fp8gemm/mainloop/scales_ahead.cuh"
#include "fp8gemm/mainloop/stage.cuh"
#include "fp8gemm/mainloop/wave_operands.cuh"
#include "fp8gemm/ptx/thread.cuh"
#include "fp8gemm/ptx/wgmma.cuh"
#include "fp8gemm/scheduler/tile.cuh"
#include "fp8gemm/trace/tracer.cuh"

namespace fp8gemm {

template <class Config>
class Multiplier : Tracer<Config, Track::kMultiply> {
    using Shape = TileShape<Config>;
    using Stages = OperandStages<Config>;
    using Ring = BarrierRing<Config::kStages>;
    using Scales = Conditional<Config::kScaling == Scaling::kBlock, BlockScales<Config>, RowScales<Config>>;
    using Chunks = ChunkPlan<Config, Scales::kBorderStep>;

public:
    // What `pipelined` asks for; `start`, `release` and `promote` are below. A step is one K block of the share.
    static constexpr uint32_t kInFlight = Chunks::kInFlight;
    static constexpr uint32_t kWavesPerStep = Chunks::kWavesPerBlock;
    static constexpr uint32_t kSteps = Shape::kNumSteps;
    static constexpr bool kPromotionReadsStage = Scales::kReadsStage;
    static constexpr bool kAwaitsAhead = Chunks::kAwaitsAhead;  // or `start` waits for a chunk's first stage, too

    struct Chunk {
        uint32_t first_step;
        Borders borders;  ///< that this copy of the main loop serves
    };

    /// A wave that has been started.
    struct Flight {
        float block_sums[Shape::kWaveRegisters];
        typename Scales::Products products;
        uint32_t stage;
        uint32_t full;     ///< address of the stage's full barrier
        uint32_t pending;  ///< 0, once its scales that are in registers have been loaded
    };
    using Flights = Flight[kInFlight];

private:
    static_assert(!(Chunks::kLooksBehind && Scales::kAhead), "scales are loaded ahead if the look ahead says so");
    static_assert(!Scales::kFetches || Chunks::kBorderRange <= 2 * Scales::kBorderStep,
                  "a copy is for two borders at most");

    Stages& stages_;
    Scales scales_;
    uint32_t lane_;
    uint32_t warpgroup_;
    uint32_t first_row_;    ///< of this thread in the CTA tile: the upper of the two rows it holds in each wave
    uint32_t first_scale_;  ///< its place among the scales of A
    WaveOperands<Config, Scales::kAhead> operands_;
    NextStage<Ring> next_;
    StageRelease<Config> release_;
    ScalesAhead<Config> ahead_;  ///< with Scales::kAhead, of the K block that is multiplied next

public:
    template <class Params>
    FP8GEMM_DEVICE Multiplier(const Params& params, Stages& stages, uint32_t warpgroup, uint32_t warp)
        : stages_(stages),
          scales_(params.scales_b, stages, WarpgroupOrigin<Shape, Config>(warpgroup).col, Shape::share_of(warpgroup)),
          lane_(ptx::lane_index()),
          warpgroup_(warpgroup),
          operands_(stages, WarpgroupOrigin<Shape, Config>(warpgroup), Shape::share_of(warpgroup), params.zero),
          next_(stages.ring),
          release_(lane_, params.zero) {
        first_row_ = WarpgroupOrigin<Shape, Config>(warpgroup).row + first_row_of_warp(warp) + lane_ / 4;
    }

    /// Asks for what `run` will need of a tile besides its operands, early enough that it need not wait for it.
    template <class Tile>
    FP8GEMM_DEVICE void begin(const Tile& tile) {
        this->mark_tile(tile);
        first_scale_ = first_row_ + tile.skipped_scales_a();
        scales_.begin(tile);
    }

    /// Computes this warpgroup's part of the tile that was begun, over the whole of K: zeros, if it begins behind the last of
    /// the output's `rows` and is passed over. Tensor cores and power are then left to those that have some.
    template <class Tile>
    FP8GEMM_DEVICE void run(const Tile& tile, uint32_t rows, typename Shape::Accumulators& accumulators) {
        clear(accumulators);
        if constexpr (Shape::kPassesOver) {
            if (tile.row_of_d() + WarpgroupOrigin<Shape, Config>(warpgroup_).row >= tile.end_of_d(rows)) {
                pass(tile.steps());
                return;
            }
        }
        operands_.describe_first(next_.index());  // anew, so that nothing is kept of it over an epilogue
        if constexpr (Scales::kFetches) {
            scales_.fetch(0);
        }
        if (tile.is_half_wide) {
            multiply_first_waves<Config::kHalfColumns>(*this, accumulators);
        } else if constexpr (Chunks::kStepsVary) {
            multiply_varying<Chunks>(*this, is_behind(), ptx::same_in_warp(tile.steps()), accumulators);
        } else {
            multiply_up_to<Chunks::kBorderRange>(accumulators);
        }
    }

    /// For the instrumented build: where K is shared, the sums of this tile are added up next.
    FP8GEMM_DEVICE void mark_sum(TileCoordinate tile) {
        if constexpr (Config::kWarpgroupsK * Config::kSplitK > 1) {
            this->mark(Activity::kAddShares, tile);
        }
    }

private:
    FP8GEMM_DEVICE uint32_t share() const { return Shape::share_of(warpgroup_); }

    /// Which of the tile's K blocks a K block of the share is: marks say that one.
    FP8GEMM_DEVICE uint32_t of_tile(uint32_t k_block) const { return k_block * Config::kWarpgroupsK + share(); }

    FP8GEMM_DEVICE static void clear(typename Shape::Accumulators& accumulators) {
        float* sums = &accumulators[0][0][0];
#pragma unroll
        for (uint32_t i = 0; i < sizeof(accumulators) / sizeof(float); ++i) {
            sums[i] = 0.0f;
        }
    }

    /// Hands back so many stages, each when it is full: then all others have handed back what was in it before.
    FP8GEMM_DEVICE void pass(uint32_t steps) {
        if constexpr (Scales::kAhead) {
            release_.wait_for(release_.pending(ahead_.loaded()));  // so that the machine, too, knows of none on its way
        }
#pragma unroll 1
        for (uint32_t step = 0; step < steps; ++step) {
            this->mark(Activity::kWaitFull, of_tile(step));
            next_.wait();
            release_.release(next_.full());
            go_on();
            next_.look();
        }
        next_.forget_unless(false);  // the next tile's first may have scales to be loaded
    }

    /// Multiplies by the copy of the loop that has the tile's border in its range, which ends at `kLargest` or later.
    template <uint32_t kLargest>
    FP8GEMM_DEVICE void multiply_up_to(typename Shape::Accumulators& accumulators) {
        if constexpr (kLargest < kScaleBlock) {
            if (scales_.border() > kLargest) {
                multiply_up_to<kLargest + Chunks::kBorderRange>(accumulators);
                return;
            }
        }
        const Borders borders{kLargest - Chunks::kBorderRange + Scales::kBorderStep, kLargest};
        if constexpr (kAwaitsAhead) {
            multiply_equal_chunks<Chunks::kLong>(*this, borders, accumulators);
        } else {
            multiply_chunks<Chunks>(*this, is_behind(), borders, accumulators);
        }
    }

    /// Whether this warpgroup changes chunks at other times than the first.
    FP8GEMM_DEVICE bool is_behind() const { return Chunks::kStaggers && warpgroup_ % 2 == 1; }

public:
    /// Waits for the stage of a K block, the next, and asks for its scales that are ahead, if the look ahead has not.
    FP8GEMM_DEVICE void await(uint32_t k_block) {
        this->mark(Activity::kWaitFull, of_tile(k_block));
        if (next_.wait()) {
            load_ahead(true);
        }
    }

    /// With the first wave of a K block, of `kPerStep` in each, waits for the block's stage, unless it has been awaited
    /// ahead of the chunk.
    ///
    /// Weight scales advance beside a multiplication: the one just started, or with two in flight the one before. Scales
    /// that are ahead are asked for with the last wave of the K block before, if the stage is full by then.
    template <uint32_t kWaves, uint32_t kPerStep = kWavesPerStep>
    FP8GEMM_DEVICE void start(uint32_t wave_of_chunk, Chunk chunk, Flights& flights) {
        if (kInFlight > 1 && wave_of_chunk % (Chunks::kShort * kPerStep) == 0) {
            scales_.advance(chunk.first_step + wave_of_chunk / kPerStep);
        }
        Flight& flight = flights[wave_of_chunk % kInFlight];
        const uint32_t k_block = chunk.first_step + wave_of_chunk / kPerStep;
        const uint32_t wave = wave_of_chunk % kPerStep;
        const uint32_t m = wave / Shape::kWavesN;
        const uint32_t n = wave % Shape::kWavesN;
        if (wave == 0 && !(kAwaitsAhead && wave_of_chunk == 0)) {
            await(k_block);
        }
        flight.stage = next_.index();
        flight.full = next_.full();
        const uint32_t slot = flight.stage * Stages::kBlocksPerStage + share();
        const float* staged = &stages_.scales.a[slot][first_scale_ + m * Shape::kWaveM];
        const float* source = Scales::kAhead ? ahead_.of_wave(m) : staged;
        const float scales_a[2] = {source[0], source[Scales::kAhead ? 1 : 8]};
        this->mark(Activity::kMultiply, of_tile(k_block), wave);
        operands_.multiply(flight.stage, m, n, flight.block_sums);
        flight.products = scales_.products(slot, k_block, n, scales_a);
        if constexpr (Scales::kKeeps) {
            if (wave_of_chunk == 0 || (kInFlight == 1 && wave == 0)) {
                scales_.keep(slot);  // of others beside the promotion of the wave before
            }
        }
        // Of waves beside one another, which have the same scales if these are ahead, the first waits for them.
        flight.pending = Scales::kAhead && n > 0 ? 0 : release_.pending(scales_a);
        if (wave == kPerStep - 1) {
            go_on();
            if constexpr (!Chunks::kLooksBehind) {
                next_.look();
            }
        }
        if (kInFlight == 1 && wave_of_chunk + 1 == kWaves) {
            scales_.advance(chunk.first_step + kWaves / kPerStep);
        }
        if constexpr (Scales::kAhead) {
            if (wave == kPerStep - 1) {
                // Of the next tile nothing is known yet.
                next_.forget_unless(k_block + 1 < Shape::kNumSteps);
                load_ahead(next_.is_full());
            }
        }
    }

    /// With a K block's last wave, once scales of all its waves are loaded. Behind it weight scales of the next are fetched.
    template <uint32_t kPerStep = kWavesPerStep>
    FP8GEMM_DEVICE void release(uint32_t wave_of_chunk, Chunk chunk, const Flights& flights) {
        const Flight& flight = flights[wave_of_chunk % kInFlight];
        const uint32_t wave = wave_of_chunk % kPerStep;
        release_.wait_for(flight.pending);
        if (wave == kPerStep - 1) {
            if constexpr (Scales::kKeeps && !kPromotionReadsStage) {
                release_.wait_for(release_.pending(scales_.kept()));
            }
            release_.release(flight.full);
            if constexpr (Scales::kFetches) {
                scales_.fetch(chunk.first_step + wave_of_chunk / kPerStep + 1);
            }
            if constexpr (Chunks::kLooksBehind) {
                next_.look();
            }
        }
    }

    /// s = scale_a * scale_b; acc = fma(s, block_sum, acc). `kLater` waves have been started behind this one.
    template <uint32_t kLater, uint32_t kPerStep = kWavesPerStep>
    FP8GEMM_DEVICE void promote(uint32_t wave_of_chunk, Chunk chunk, const Flights& flights,
                                typename Shape::Accumulators& accumulators) {
        const Flight& flight = flights[wave_of_chunk % kInFlight];
        const uint32_t wave = wave_of_chunk % kPerStep;
        const uint32_t m = wave / Shape::kWavesN;
        const uint32_t n = wave % Shape::kWavesN;
        uint32_t loaded = 0;
        this->mark(Activity::kPromote, of_tile(chunk.first_step + wave_of_chunk / kPerStep), wave);
        scales_.promote(chunk.borders, n, flight.products, flight.block_sums, accumulators[m][n], loaded);
        if constexpr (kPromotionReadsStage) {
            release_.wait_for(release_.pending(loaded));
        }
        if constexpr (Scales::kKeeps && kLater > 0) {
            if (wave == kPerStep - 1) {
                scales_.keep(flights[(wave_of_chunk + 1) % kInFlight].products.slot);
            }
        }
    }

private:
    /// Goes on to the next stage, while the tensor cores are busy.
    FP8GEMM_DEVICE void go_on() {
        next_.advance();
        operands_.describe_first(next_.index());
    }

    /// Asks for the scales of A of the K block in the next stage, if that is full.
    FP8GEMM_DEVICE void load_ahead(bool is_full) {
        if constexpr (Scales::kAhead) {
            ahead_.load(is_full, stages_.scales.a[next_.index() * Stages::kBlocksPerStage + share()][first_scale_]);
        }
    }
};

}  // namespace fp8gemm
