// Warpgroup products (wgmma): D += A B with D in registers, B in shared memory, A in shared memory or registers.
//
// A product is m64 x N x k16; the four warps of a warpgroup issue it together. Accumulator d[4 j + 2 h + e] of lane l
// in warp w is row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + e. The A operand of k-step s, in registers, is columns
// [16 s, 16 s + 16) of such a fragment rounded to pairs.
//
//     Fence(); Start; Multiply...; Commit(); ... WaitFor<pending>(); Settle(d);
//
// Start overwrites d, Multiply adds to it.
//
// Between Commit and WaitFor nothing may touch the accumulators or A registers of the products in flight.
#ifndef FLASHBOB_KERNELS_CUDA_TILE_HOPPER_WGMMA_CUH_
#define FLASHBOB_KERNELS_CUDA_TILE_HOPPER_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace flashbob::cuda::hopper {

// Where an operand lies in shared memory: panels of 64 columns, 128 bytes a row, 128-byte swizzle. Offsets are in
// bytes, multiples of 16, and are added to the address alone.
//   k contiguous ("row"):  rows are m or n; a k-step is 32 bytes further in the panel.
//   m or n contiguous ("transposed"): rows are k; a k-step is 16 rows, 2,048 bytes; the next 64 columns are a panel
//   away.
struct Operand {
  uint32_t low;  // bits 0-13: address / 16; bits 16-29: bytes between panels / 16 (transposed operands only)

  __device__ static Operand Rows(uint32_t address) { return {((address & 0x3ffffu) >> 4) | (1u << 16)}; }
  __device__ static Operand Transposed(uint32_t address, uint32_t panel_bytes) {
    return {((address & 0x3ffffu) >> 4) | ((panel_bytes >> 4) << 16)};
  }
  __device__ Operand operator+(uint32_t bytes) const { return {low + (bytes >> 4)}; }
  // Called where a loop's products begin: descriptors derived from this one are then made there, by one addition, and
  // not kept in registers (or spilled) through the loop.
  __device__ void Refresh() { asm volatile("" : "+r"(low)); }
  // 1,024 bytes between groups of eight rows; swizzle of 128 bytes.
  __device__ uint64_t Descriptor() const { return (uint64_t{(1024u >> 4) | (1u << 30)} << 32) | low; }
};

__device__ inline void Fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void Commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void WaitFor() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// After the wait, before the accumulators are read: keeps the compiler from reading them earlier.
template <int kCount>
__device__ inline void Settle(float (&accumulators)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

template <typename T, int kColumns>
struct Wgmma;

// Operand lists of inline assembly: accumulators as outputs (c is their constraint), and their names in the text.
#define FLASHBOB_OUT8(c, d, i) \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define FLASHBOB_OUT16(c, d, i) FLASHBOB_OUT8(c, d, i), FLASHBOB_OUT8(c, d, i + 8)
#define FLASHBOB_ACCUMULATORS16(c, d) FLASHBOB_OUT16(c, d, 0)
#define FLASHBOB_ACCUMULATORS32(c, d) FLASHBOB_OUT16(c, d, 0), FLASHBOB_OUT16(c, d, 16)
#define FLASHBOB_ACCUMULATORS40(c, d) FLASHBOB_OUT16(c, d, 0), FLASHBOB_OUT16(c, d, 16), FLASHBOB_OUT8(c, d, 32)
#define FLASHBOB_ACCUMULATORS48(c, d) FLASHBOB_OUT16(c, d, 0), FLASHBOB_OUT16(c, d, 16), FLASHBOB_OUT16(c, d, 32)
#define FLASHBOB_ACCUMULATORS64(c, d) \
  FLASHBOB_OUT16(c, d, 0), FLASHBOB_OUT16(c, d, 16), FLASHBOB_OUT16(c, d, 32), FLASHBOB_OUT16(c, d, 48)
#define FLASHBOB_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASHBOB_NAMES32 \
  FLASHBOB_NAMES16       \
  ", "                   \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHBOB_NAMES40 \
  FLASHBOB_NAMES32       \
  ", "                   \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define FLASHBOB_NAMES48 \
  FLASHBOB_NAMES40       \
  ", "                   \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define FLASHBOB_NAMES64 \
  FLASHBOB_NAMES48       \
  ", "                   \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// One instruction: i0.. are the numbers of the operands behind the accumulators.
#define FLASHBOB_PRODUCT(ptx, columns, count, constraint, accumulate, d, text, ...)                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate                                                 \
               ", 0;\n"                                                                                       \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." ptx "." ptx " {" FLASHBOB_NAMES##count \
               "}, " text ";\n}\n"                                                                            \
               : FLASHBOB_ACCUMULATORS##count(constraint, d)                                                  \
               : __VA_ARGS__)
#define FLASHBOB_SHARED(ptx, columns, count, constraint, accumulate, i0, i1, i2, i3)                               \
  FLASHBOB_PRODUCT(ptx, columns, count, constraint, accumulate, d, "%" #i0 ", %" #i1 ", p, 1, 1, %" #i2 ", %" #i3, \
                   "l"(a.Descriptor()), "l"(b.Descriptor()), "n"(kTransposeA), "n"(kTransposeB))
#define FLASHBOB_REGISTERS(ptx, columns, count, constraint, accumulate, i0, i1, i2, i3, i4, i5)                \
  FLASHBOB_PRODUCT(ptx, columns, count, constraint, accumulate, d,                                             \
                   "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, %" #i5, "r"(a[0]), "r"(a[1]), \
                   "r"(a[2]), "r"(a[3]), "l"(b.Descriptor()), "n"(kTransposeB))
#define FLASHBOB_WGMMA(T, ptx, columns, count, i0, i1, i2, i3, i4, i5)                      \
  template <>                                                                               \
  struct Wgmma<T, columns> {                                                                \
    template <int kTransposeA, int kTransposeB>                                             \
    __device__ static void Start(float (&d)[count], Operand a, Operand b) {                 \
      FLASHBOB_SHARED(ptx, columns, count, "=f", "0", i0, i1, i2, i3);                      \
    }                                                                                       \
    template <int kTransposeA, int kTransposeB>                                             \
    __device__ static void Multiply(float (&d)[count], Operand a, Operand b) {              \
      FLASHBOB_SHARED(ptx, columns, count, "+f", "1", i0, i1, i2, i3);                      \
    }                                                                                       \
    template <int kTransposeB>                                                              \
    __device__ static void Start(float (&d)[count], const uint32_t (&a)[4], Operand b) {    \
      FLASHBOB_REGISTERS(ptx, columns, count, "=f", "0", i0, i1, i2, i3, i4, i5);           \
    }                                                                                       \
    template <int kTransposeB>                                                              \
    __device__ static void Multiply(float (&d)[count], const uint32_t (&a)[4], Operand b) { \
      FLASHBOB_REGISTERS(ptx, columns, count, "+f", "1", i0, i1, i2, i3, i4, i5);           \
    }                                                                                       \
  }

FLASHBOB_WGMMA(__nv_bfloat16, "bf16", 32, 16, 16, 17, 18, 19, 20, 21);
FLASHBOB_WGMMA(__nv_bfloat16, "bf16", 64, 32, 32, 33, 34, 35, 36, 37);
FLASHBOB_WGMMA(__nv_bfloat16, "bf16", 80, 40, 40, 41, 42, 43, 44, 45);
FLASHBOB_WGMMA(__nv_bfloat16, "bf16", 96, 48, 48, 49, 50, 51, 52, 53);
FLASHBOB_WGMMA(__nv_bfloat16, "bf16", 128, 64, 64, 65, 66, 67, 68, 69);
FLASHBOB_WGMMA(__half, "f16", 32, 16, 16, 17, 18, 19, 20, 21);
FLASHBOB_WGMMA(__half, "f16", 64, 32, 32, 33, 34, 35, 36, 37);
FLASHBOB_WGMMA(__half, "f16", 80, 40, 40, 41, 42, 43, 44, 45);
FLASHBOB_WGMMA(__half, "f16", 96, 48, 48, 49, 50, 51, 52, 53);
FLASHBOB_WGMMA(__half, "f16", 128, 64, 64, 65, 66, 67, 68, 69);

#undef FLASHBOB_OUT8
#undef FLASHBOB_OUT16
#undef FLASHBOB_ACCUMULATORS16
#undef FLASHBOB_ACCUMULATORS32
#undef FLASHBOB_ACCUMULATORS40
#undef FLASHBOB_ACCUMULATORS48
#undef FLASHBOB_ACCUMULATORS64
#undef FLASHBOB_NAMES16
#undef FLASHBOB_NAMES32
#undef FLASHBOB_NAMES40
#undef FLASHBOB_NAMES48
#undef FLASHBOB_NAMES64
#undef FLASHBOB_PRODUCT
#undef FLASHBOB_SHARED
#undef FLASHBOB_REGISTERS
#undef FLASHBOB_WGMMA

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_TILE_HOPPER_WGMMA_CUH_
