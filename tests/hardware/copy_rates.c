/* Rates of plain copies by the CUDA driver API, as a second opinion on `peerproof measure`. It shares no code with
 * peerproof: no gate kernel, no content check, nothing but copies between events.
 *
 *     cc -O2 -Wall -o copy_rates copy_rates.c -ldl
 *     ./copy_rates [BYTES [SAMPLES]]        (268435456 bytes, 20 samples)
 *
 * Needs no toolkit, only the driver's libcuda.so.1. One line a case: name, source, destination, median GB/s, median
 * absolute deviation, samples. GB is 1e9 bytes.
 *
 * How a sample is taken: one copy goes first and keeps the stream busy while the rest is queued, so the host's launch
 * cost is not in the time; then an event, four copies, an event. Both directions: the same on two streams at once, and
 * all bytes over the longer of the two times.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext, *CUstream, *CUevent;
typedef unsigned long long CUdeviceptr;

static CUresult (*init)(unsigned);
static CUresult (*device_count)(int *);
static CUresult (*device_get)(CUdevice *, int);
static CUresult (*retain)(CUcontext *, CUdevice);
static CUresult (*set_current)(CUcontext);
static CUresult (*can_access)(int *, CUdevice, CUdevice);
static CUresult (*enable_peer)(CUcontext, unsigned);
static CUresult (*mem_alloc)(CUdeviceptr *, size_t);
static CUresult (*host_alloc)(void **, size_t, unsigned);
static CUresult (*copy_peer)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream);
static CUresult (*copy_htod)(CUdeviceptr, const void *, size_t, CUstream);
static CUresult (*copy_dtoh)(void *, CUdeviceptr, size_t, CUstream);
static CUresult (*set_bytes)(CUdeviceptr, unsigned char, size_t, CUstream);
static CUresult (*stream_create)(CUstream *, unsigned);
static CUresult (*stream_sync)(CUstream);
static CUresult (*event_create)(CUevent *, unsigned);
static CUresult (*event_record)(CUevent, CUstream);
static CUresult (*elapsed)(float *, CUevent, CUevent);
static CUresult (*error_name)(CUresult, const char **);

#define MOST_GPUS 16
#define MOST_SAMPLES 1000
#define COPIES 4
#define WARMUP 3

static void ok(CUresult code, const char *what) {
    const char *name = "?";
    if (!code) return;
    if (error_name) error_name(code, &name);
    fprintf(stderr, "copy_rates: %s answered %d (%s)\n", what, code, name);
    exit(1);
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "copy_rates: the driver lacks %s\n", name);
        exit(1);
    }
    return found;
}

static void load(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "copy_rates: no libcuda.so.1: %s\n", dlerror());
        exit(1);
    }
#define GET(variable, name) *(void **)&variable = symbol(cuda, name)
    GET(init, "cuInit");
    GET(device_count, "cuDeviceGetCount");
    GET(device_get, "cuDeviceGet");
    GET(retain, "cuDevicePrimaryCtxRetain");
    GET(set_current, "cuCtxSetCurrent");
    GET(can_access, "cuDeviceCanAccessPeer");
    GET(enable_peer, "cuCtxEnablePeerAccess");
    GET(mem_alloc, "cuMemAlloc_v2");
    GET(host_alloc, "cuMemHostAlloc");
    GET(copy_peer, "cuMemcpyPeerAsync");
    GET(copy_htod, "cuMemcpyHtoDAsync_v2");
    GET(copy_dtoh, "cuMemcpyDtoHAsync_v2");
    GET(set_bytes, "cuMemsetD8Async");
    GET(stream_create, "cuStreamCreate");
    GET(stream_sync, "cuStreamSynchronize");
    GET(event_create, "cuEventCreate");
    GET(event_record, "cuEventRecord");
    GET(elapsed, "cuEventElapsedTime");
    GET(error_name, "cuGetErrorName");
}

struct gpu {
    CUdevice device;
    CUcontext context;
    CUstream stream[2];
    CUevent event[2][2];
    CUdeviceptr from, to;
    void *host_from, *host_to;
} gpus[MOST_GPUS];

/* One flow: which way, between which GPUs, on which GPU's stream. */
struct flow {
    enum { TO_DEVICE, TO_HOST, PEER } kind;
    struct gpu *source, *destination, *working;
    int stream;
};

static void one_copy(const struct flow *f, size_t bytes) {
    CUstream stream = f->working->stream[f->stream];
    ok(set_current(f->working->context), "cuCtxSetCurrent");
    switch (f->kind) {
    case TO_DEVICE: ok(copy_htod(f->working->to, f->working->host_from, bytes, stream), "cuMemcpyHtoDAsync"); break;
    case TO_HOST: ok(copy_dtoh(f->working->host_to, f->working->from, bytes, stream), "cuMemcpyDtoHAsync"); break;
    case PEER:
        ok(copy_peer(f->destination->to, f->destination->context, f->source->from, f->source->context, bytes, stream),
           "cuMemcpyPeerAsync");
        break;
    }
}

/* GB/s of all flows together: all bytes over the longest time between a flow's own events. */
static double sample(const struct flow *flows, int count, size_t bytes) {
    double longest = 0;
    int i, c;
    for (i = 0; i < count; i++) one_copy(&flows[i], bytes);
    for (i = 0; i < count; i++) {
        struct gpu *g = flows[i].working;
        ok(set_current(g->context), "cuCtxSetCurrent");
        ok(event_record(g->event[flows[i].stream][0], g->stream[flows[i].stream]), "cuEventRecord");
    }
    for (c = 0; c < COPIES; c++)
        for (i = 0; i < count; i++) one_copy(&flows[i], bytes);
    for (i = 0; i < count; i++) {
        struct gpu *g = flows[i].working;
        ok(set_current(g->context), "cuCtxSetCurrent");
        ok(event_record(g->event[flows[i].stream][1], g->stream[flows[i].stream]), "cuEventRecord");
    }
    for (i = 0; i < count; i++) {
        struct gpu *g = flows[i].working;
        float ms = 0;
        ok(set_current(g->context), "cuCtxSetCurrent");
        ok(stream_sync(g->stream[flows[i].stream]), "cuStreamSynchronize");
        ok(elapsed(&ms, g->event[flows[i].stream][0], g->event[flows[i].stream][1]), "cuEventElapsedTime");
        if (ms > longest) longest = ms;
    }
    return (double)bytes * COPIES * count / 1e6 / longest;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void report(const char *name, const char *from, const char *to, const struct flow *flows, int count, size_t bytes,
                   int samples) {
    static double values[MOST_SAMPLES], off[MOST_SAMPLES];
    double middle;
    int i;
    for (i = 0; i < WARMUP; i++) sample(flows, count, bytes);
    for (i = 0; i < samples; i++) values[i] = sample(flows, count, bytes);
    middle = median(values, samples);
    for (i = 0; i < samples; i++) off[i] = values[i] > middle ? values[i] - middle : middle - values[i];
    printf("%s %s %s %.3f %.3f %d\n", name, from, to, middle, median(off, samples), samples);
    fflush(stdout);
}

int main(int argc, char **argv) {
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)256 << 20;
    int samples = argc > 2 ? atoi(argv[2]) : 20, count = 0, s, d, i;
    char from[16], to[16];
    if (bytes < 4096 || samples < 1 || samples > MOST_SAMPLES) {
        fprintf(stderr, "usage: copy_rates [BYTES [SAMPLES]], from 4096 bytes, 1 to %d samples\n", MOST_SAMPLES);
        return 64;
    }
    /* The order of peerproof's GPUs. */
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    load();
    ok(init(0), "cuInit");
    ok(device_count(&count), "cuDeviceGetCount");
    if (count > MOST_GPUS) count = MOST_GPUS;
    for (i = 0; i < count; i++) {
        struct gpu *g = &gpus[i];
        ok(device_get(&g->device, i), "cuDeviceGet");
        ok(retain(&g->context, g->device), "cuDevicePrimaryCtxRetain");
        ok(set_current(g->context), "cuCtxSetCurrent");
        ok(mem_alloc(&g->from, bytes), "cuMemAlloc");
        ok(mem_alloc(&g->to, bytes), "cuMemAlloc");
        ok(host_alloc(&g->host_from, bytes, 1), "cuMemHostAlloc");
        ok(host_alloc(&g->host_to, bytes, 1), "cuMemHostAlloc");
        memset(g->host_from, i + 1, bytes);
        memset(g->host_to, 0, bytes);
        for (s = 0; s < 2; s++) {
            ok(stream_create(&g->stream[s], 1), "cuStreamCreate"); /* non-blocking */
            for (d = 0; d < 2; d++) ok(event_create(&g->event[s][d], 0), "cuEventCreate");
        }
        ok(set_bytes(g->from, (unsigned char)(i + 1), bytes, g->stream[0]), "cuMemsetD8Async");
        ok(stream_sync(g->stream[0]), "cuStreamSynchronize");
    }
    for (i = 0; i < count; i++) {
        struct flow down = {TO_DEVICE, NULL, &gpus[i], &gpus[i], 0}, up = {TO_HOST, &gpus[i], NULL, &gpus[i], 1};
        struct flow both[2] = {down, up};
        sprintf(from, "%d", i);
        report("one-way-pull", "host", from, &down, 1, bytes, samples);
        report("one-way-push", from, "host", &up, 1, bytes, samples);
        report("both-push", "host", from, both, 2, bytes, samples);
    }
    for (s = 0; s < count; s++)
        for (d = 0; d < count; d++) {
            int can = 0;
            if (s == d) continue;
            ok(can_access(&can, gpus[s].device, gpus[d].device), "cuDeviceCanAccessPeer");
            if (!can) continue;
            ok(set_current(gpus[s].context), "cuCtxSetCurrent");
            ok(enable_peer(gpus[d].context, 0), "cuCtxEnablePeerAccess");
        }
    for (s = 0; s < count; s++)
        for (d = 0; d < count; d++) {
            struct flow push = {PEER, &gpus[s], &gpus[d], &gpus[s], 0}, back = {PEER, &gpus[d], &gpus[s], &gpus[d], 0};
            struct flow pull = {PEER, &gpus[s], &gpus[d], &gpus[d], 0};
            struct flow both[2] = {push, back};
            if (s == d) continue;
            sprintf(from, "%d", s);
            sprintf(to, "%d", d);
            report("one-way-push", from, to, &push, 1, bytes, samples);
            report("one-way-pull", from, to, &pull, 1, bytes, samples);
            if (s < d) report("both-push", from, to, both, 2, bytes, samples);
        }
    return 0;
}
