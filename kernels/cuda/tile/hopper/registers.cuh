// What happens between products in registers: rounding to pairs, exponentials, matrix loads and stores, reductions.
#ifndef FLASHBOB_KERNELS_CUDA_TILE_HOPPER_REGISTERS_CUH_
#define FLASHBOB_KERNELS_CUDA_TILE_HOPPER_REGISTERS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace flashbob::cuda::hopper {

// (low, high) rounded to T, in one register.
template <typename T>
__device__ inline uint32_t RoundPair(float low, float high);
template <>
__device__ inline uint32_t RoundPair<__nv_bfloat16>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <>
__device__ inline uint32_t RoundPair<__half>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <typename T>
__device__ inline float2 ExpandPair(uint32_t pair);
template <>
__device__ inline float2 ExpandPair<__nv_bfloat16>(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
template <>
__device__ inline float2 ExpandPair<__half>(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float LargestOfQuad(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ inline float SumOverQuad(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void LoadMatrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

__device__ inline void StoreMatricesTransposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ inline float4 LoadShared4(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address));
  return value;
}

__device__ inline uint32_t LoadShared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ inline void StoreShared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Adds four floats to global memory, in no order.
__device__ inline void AddGlobal4(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_TILE_HOPPER_REGISTERS_CUH_
