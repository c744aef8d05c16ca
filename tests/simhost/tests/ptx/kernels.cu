// Kernels of the interpreter's own tests. Rebuild: NVRTC 11.8 for compute_70, `.version` set to 7.4.
typedef unsigned int u32; typedef unsigned long long u64; typedef unsigned short u16; typedef unsigned char u8;
struct __align__(16) U4 { u32 x, y, z, w; };
__device__ __forceinline__ u64 mix(u64 x) { x ^= x >> 30; x *= 0xbf58476d1ce4e5b9ull; x ^= x >> 27; x *= 0x94d049bb133111ebull; return x ^ (x >> 31); }

extern "C" __global__ void fill16(U4* p, u64 n, u64 seed) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
    u64 a = mix(seed ^ (2 * i)), b = mix(seed ^ (2 * i + 1));
    U4 v; v.x = (u32)a; v.y = (u32)(a >> 32); v.z = (u32)b; v.w = (u32)(b >> 32);
    p[i] = v;
  }
}
extern "C" __global__ void fill32(U4* p, u32 n, u32 seed) {
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    u32 h = i * 0x9e3779b9u + seed; h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13;
    U4 v; v.x = h; v.y = __umulhi(h, 0xc2b2ae35u); v.z = __byte_perm(h, i, 0x2514); v.w = __funnelshift_l(h, i, 7);
    p[i] = v;
  }
}
extern "C" __global__ void verify16(const U4* p, u64 n, u64 seed, u64* bad) {
  u64 mine = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
    u64 a = mix(seed ^ (2 * i)), b = mix(seed ^ (2 * i + 1));
    U4 v = p[i];
    mine += v.x != (u32)a || v.y != (u32)(a >> 32) || v.z != (u32)b || v.w != (u32)(b >> 32);
  }
  if (mine) atomicAdd(bad, mine);
}
// Block sums through shared memory, with the classic tree.
extern "C" __global__ void block_sum(const u32* p, u32 n, u64* out) {
  __shared__ u64 part[256];
  u64 s = 0;
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += p[i];
  part[threadIdx.x] = s;
  __syncthreads();
  for (u32 k = blockDim.x / 2; k; k >>= 1) { if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k]; __syncthreads(); }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
// Classes counted in shared memory, merged by atomics.
extern "C" __global__ void classify(const u32* p, u32 n, u32* hist, u32* least, int* most, u32* ored) {
  __shared__ u32 h[8];
  if (threadIdx.x < 8) h[threadIdx.x] = 0;
  __syncthreads();
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    u32 v = p[i], c = v == 0 ? 0 : v == 0xffffffffu ? 1 : (v & 1) ? 2 + (v >> 30) : 6 + (__popc(v) > 16);
    atomicAdd(&h[c], 1); atomicMin(least, v); atomicMax(most, (int)v); atomicOr(ored, v & 0xf0f0f0f0u);
  }
  __syncthreads();
  if (threadIdx.x < 8) atomicAdd(&hist[threadIdx.x], h[threadIdx.x]);
}
// Collatz lengths: a divergent inner loop in a divergent outer one.
extern "C" __global__ void collatz(const u32* in, u32* out, u32 n) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 total = 0;
  for (u32 k = 0; k < (i & 3) + 1; k++) {
    u64 v = in[i] + k; u32 steps = 0;
    while (v != 1) { if (v & 1) v = 3 * v + 1; else { do v >>= 1; while (!(v & 1)); } steps++; }
    total = total * 31 + steps;
  }
  out[i] = total;
}
// A dense switch (jump table) and a local array indexed at run time.
extern "C" __global__ void switches(const u32* in, u32* out, u32 n) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 v = in[i], r, a[16];
  for (int k = 0; k < 16; k++) a[k] = v * (k + 1);
  for (u32 k = 0; k < (v & 15); k++) a[(v >> (k & 7)) & 15] += k;
  switch (v % 9) {
    case 0: r = v + 1; break; case 1: r = v * 7; break; case 2: r = v ^ 0x55; break; case 3: r = ~v; break;
    case 4: r = v >> 3; break; case 5: r = v << 5; break; case 6: r = __brev(v); break; case 7: r = __clz(v); break; default: r = 99;
  }
  out[i] = r + a[(v >> 4) & 15];
}
__constant__ u32 table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
__device__ u64 counter = 40;
extern "C" __global__ void variables(u32* out) {
  out[threadIdx.x] = table[threadIdx.x & 7];
  atomicAdd(&counter, 2ull);
}
// Warp sums by shuffles, ballots, prefix sums.
extern "C" __global__ void warps(const u32* in, u32* sum, u32* prefix, u32* ballot) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i], s = v, x = v;
  for (int k = 16; k; k >>= 1) s += __shfl_xor_sync(~0u, s, k);
  for (int k = 1; k < 32; k <<= 1) { u32 y = __shfl_up_sync(~0u, x, k); if ((threadIdx.x & 31) >= k) x += y; }
  u32 b = __ballot_sync(~0u, v & 1);
  sum[i] = s; prefix[i] = x; ballot[i] = b + __shfl_sync(~0u, v, 5, 8) + __shfl_down_sync(~0u, v, 3);
}
__device__ __forceinline__ u32 acquire(const u32* p) { u32 v; asm volatile("ld.acquire.sys.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ __forceinline__ void release(u32* p, u32 v) { asm volatile("st.release.sys.global.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory"); }
__device__ __forceinline__ u64 timer() { u64 t; asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(t)); return t; }
// Ping-pong carrying a payload that plain stores write before the release.
extern "C" __global__ void ping(u32* mine, u32* theirs, u64* payload, u32 rounds, u32 first, u64 timeout_ns, u32* status) {
  u64 t0 = timer();
  for (u32 i = 1; i <= rounds; i++) {
    if (first) { payload[0] = i * 3ull; payload[1] = ~(u64)i; release(theirs, i); }
    while (acquire(mine) < i) if (timer() - t0 > timeout_ns) { *status = i; return; }
    if (!first) { if (payload[0] != i * 3ull || payload[1] != ~(u64)i) { *status = 0x80000000u | i; return; } release(theirs, i); }
  }
  *status = 0;
}
// Blocks wait for every other block: needs them all resident.
extern "C" __global__ void grid_barrier(u32* count, u32* out) {
  if (threadIdx.x == 0) { atomicAdd(count, 1); while (*(volatile u32*)count < gridDim.x) {} }
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x + threadIdx.x;
}
// Lane 0 waits for lane 31 of its own warp.
extern "C" __global__ void lanes_wait(u32* flag, u32* out) {
  if (threadIdx.x == 0) { while (*(volatile u32*)flag == 0) {} out[0] = *(volatile u32*)flag; }
  else if (threadIdx.x == 31) { *(volatile u32*)flag = 7; }
  __syncwarp();
  out[threadIdx.x + 1] = __activemask();
}
// Floats: f16 sums, fused multiply-add, conversions.
extern "C" __global__ void floats(const float* a, const float* b, u16* half, u16* bf, float* fma, int* whole, float* q, u32 n) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = a[i], y = b[i], hx; u16 h;
  asm("cvt.rn.f16.f32 %0,%1;" : "=h"(h) : "f"(x)); asm("cvt.f32.f16 %0,%1;" : "=f"(hx) : "h"(h));
  asm("cvt.rn.f16.f32 %0,%1;" : "=h"(h) : "f"(hx + y)); half[i] = h;
  u32 u = __float_as_uint(x); bf[i] = (u & 0x7fffffffu) > 0x7f800000u ? (u16)((u >> 16) | 0x40u) : (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  fma[i] = __fmaf_rn(x, y, 1.5f); whole[i] = __float2int_rn(x); q[i] = fminf(x, y) / fmaxf(y, 2.0f);
}
extern "C" __global__ void bytes(const u8* in, u8* out, short* wide, u32 n) {
  extern __shared__ u8 tile[];
  u32 t = threadIdx.x;
  if (t < n) tile[t] = in[t];
  __syncthreads();
  if (t < n) { u8 v = tile[n - 1 - t]; out[t] = v; wide[t] = (short)((signed char)v * 3); }
  u32 any = __syncthreads_count(t < n && tile[t] > 100);
  if (t == 0) wide[n] = (short)any;
}
// One-shot sum over peers (a peer may already be an epoch ahead): flags by release and acquire, then every rank reads all inputs. Element codecs by conversion.
struct F32 { typedef float T; static __device__ float up(T v) { return v; } static __device__ T down(float f) { return f; } };
struct F16 { typedef u16 T; static __device__ float up(T v) { float f; asm("cvt.f32.f16 %0,%1;" : "=f"(f) : "h"(v)); return f; }
  static __device__ T down(float f) { T v; asm("cvt.rn.f16.f32 %0,%1;" : "=h"(v) : "f"(f)); return v; } };
struct Group { const void* in[4]; u32* flag[4]; };
template <class C> __device__ void sum(Group g, void* out, u32 rank, u32 world, u32 n, u32 epoch, u64 timeout_ns, u32* status) {
  typedef typename C::T T;
  if (threadIdx.x < world) {
    release(g.flag[threadIdx.x] + blockIdx.x * 4 + rank, epoch);
    u64 t0 = timer();
    while ((int)(acquire(g.flag[rank] + blockIdx.x * 4 + threadIdx.x) - epoch) < 0) if (timer() - t0 > timeout_ns) { atomicExch(status, 1 + threadIdx.x); break; }
  }
  __syncthreads();
  const u32 per = 16 / sizeof(T);
  for (u32 v = blockIdx.x * blockDim.x + threadIdx.x; v * per < n; v += gridDim.x * blockDim.x) {
    float acc[16 / sizeof(T)];
    for (u32 k = 0; k < per; k++) acc[k] = 0.f;
    for (u32 r = 0; r < world; r++) { U4 q = ((const U4*)g.in[r])[v]; const T* e = (const T*)&q;
      for (u32 k = 0; k < per; k++) acc[k] += C::up(e[k]); }
    U4 q; T* e = (T*)&q;
    for (u32 k = 0; k < per; k++) e[k] = C::down(acc[k]);
    ((U4*)out)[v] = q;
  }
}
extern "C" __global__ void __launch_bounds__(128) sum_f32(Group g, void* o, u32 r, u32 w, u32 n, u32 e, u64 t, u32* s) { sum<F32>(g, o, r, w, n, e, t, s); }
extern "C" __global__ void __launch_bounds__(128) sum_f16(Group g, void* o, u32 r, u32 w, u32 n, u32 e, u64 t, u32* s) { sum<F16>(g, o, r, w, n, e, t, s); }
