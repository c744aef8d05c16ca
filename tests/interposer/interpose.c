/* A libcuda.so.1 that passes every call to the real one and spoils chosen copies between GPUs: faults below the driver's
 * interface on real hardware, with its real timing and asynchrony. Exports `peerproof_fault_injected`, so that every report
 * made above it says FAULT-INJECTED.
 *
 * Knows copies by their ends and by whose stream carries them. Cannot spoil what multiprocessors load and store.
 *
 *   PEERPROOF_INTERPOSE   rules, separated by ';':  SRC>DST:HOW=KIND[:nth=N][:ms=N]
 *                         ends: a device number or *;  how: push (a stream of the source), pull, any
 *                         kinds: zeroed dropped shifted flipped partial late hang
 *                         nth: only every N-th such copy;  ms: of late, 100 when not given
 *   PEERPROOF_REAL_LIBCUDA  path of the real library; else the next libcuda.so.1 on LD_LIBRARY_PATH or in the usual folders
 *
 * A bad rule ends the process: a fault that is not planted would read as a pass.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *CUstream, *CUcontext;

enum { OK = 0, NOT_SUPPORTED = 801, POINTER_DEVICE_ORDINAL = 9, POINTER_MEMORY_TYPE = 2, TYPE_DEVICE = 2 };
enum how { PUSH, PULL, ANY };
enum kind { ZEROED, DROPPED, SHIFTED, FLIPPED, PARTIAL, LATE, HANG };
static const char *const KINDS[] = {"zeroed", "dropped", "shifted", "flipped", "partial", "late", "hang"};
static const char *const HOWS[] = {"push", "pull", "any"};

struct rule {
    int source, destination; /* -1: any */
    enum how how;
    enum kind kind;
    unsigned nth, ms, seen, struck;
    char text[96];
};
static struct rule rules[32];
static int rule_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* One word for each entry point, filled before any is called; the stubs jump through them. Made by the build script. */
extern const char *const peerproof_names[];
extern void *peerproof_targets[];
extern const int peerproof_count;

static CUresult (*real_copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
static CUresult (*real_peer)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream);
static CUresult (*real_set)(CUdeviceptr, unsigned char, size_t, CUstream);
static CUresult (*real_attribute)(void *, int, CUdeviceptr);
static CUresult (*real_device)(int *);
static CUresult (*real_host)(CUstream, void (*)(void *), void *);

unsigned peerproof_fault_injected(void) { return 1; }

CUresult peerproof_absent(void) { return NOT_SUPPORTED; }

static void die(const char *what, const char *which) {
    fprintf(stderr, "interposer: %s: %s\n", what, which);
    _exit(70);
}

static int word(const char *text, const char *const *list, int count, const char *rule) {
    for (int i = 0; i < count; i++)
        if (strcmp(text, list[i]) == 0) return i;
    die("unknown word in a rule", rule);
    return 0;
}

static int end(const char *text, const char *rule) {
    char *rest;
    if (strcmp(text, "*") == 0) return -1;
    long number = strtol(text, &rest, 10);
    if (*text == 0 || *rest != 0 || number < 0 || number > 63) die("no device number in a rule", rule);
    return (int)number;
}

static void read_rules(void) {
    const char *all = getenv("PEERPROOF_INTERPOSE");
    if (all == NULL || *all == 0) die("nothing to do", "PEERPROOF_INTERPOSE is not set");
    char *copy = strdup(all), *outer = NULL;
    for (char *text = strtok_r(copy, ";", &outer); text; text = strtok_r(NULL, ";", &outer)) {
        if (rule_count == 32 || strlen(text) >= sizeof rules[0].text) die("too many or too long rules", text);
        struct rule *rule = &rules[rule_count++];
        strcpy(rule->text, text);
        rule->nth = 1;
        rule->ms = 100;
        char source[8], destination[8], how[8], kind[16];
        int read = 0;
        if (sscanf(text, "%7[^>]>%7[^:]:%7[^=]=%15[a-z]%n", source, destination, how, kind, &read) != 4)
            die("not SRC>DST:HOW=KIND", rule->text);
        rule->source = end(source, rule->text);
        rule->destination = end(destination, rule->text);
        rule->how = (enum how)word(how, HOWS, 3, rule->text);
        rule->kind = (enum kind)word(kind, KINDS, 7, rule->text);
        for (char *option = text + read; *option;) {
            int used = 0;
            if (sscanf(option, ":nth=%u%n", &rule->nth, &used) != 1 && sscanf(option, ":ms=%u%n", &rule->ms, &used) != 1)
                die("unknown option in a rule", rule->text);
            option += used;
        }
        if (rule->nth == 0) die("nth counts from 1", rule->text);
    }
    free(copy);
}

/* Another library than this one; a copy of this one (a folder copied without its link) is not the real one either. */
static void *open_other(const char *path, dev_t device, ino_t inode) {
    struct stat at;
    if (stat(path, &at) != 0 || (at.st_dev == device && at.st_ino == inode)) return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library && !dlsym(library, "peerproof_fault_injected") ? library : NULL;
}

static void *real_library(void) {
    Dl_info self;
    struct stat own;
    if (!dladdr((void *)real_library, &self) || stat(self.dli_fname, &own) != 0) die("where am I", "dladdr");
    const char *named = getenv("PEERPROOF_REAL_LIBCUDA");
    if (named) {
        void *library = open_other(named, own.st_dev, own.st_ino);
        if (!library) die("PEERPROOF_REAL_LIBCUDA cannot be opened", named);
        return library;
    }
    char folders[8192];
    const char *path = getenv("LD_LIBRARY_PATH");
    snprintf(folders, sizeof folders, "%s:%s", path ? path : "",
             "/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib/wsl/lib");
    char *outer = NULL;
    for (char *folder = strtok_r(folders, ":", &outer); folder; folder = strtok_r(NULL, ":", &outer)) {
        char file[4200];
        snprintf(file, sizeof file, "%s/libcuda.so.1", folder);
        void *library = open_other(file, own.st_dev, own.st_ino);
        if (library) return library;
    }
    die("no real libcuda.so.1", "set PEERPROOF_REAL_LIBCUDA");
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    read_rules();
    void *library = real_library();
    for (int i = 0; i < peerproof_count; i++) {
        void *found = dlsym(library, peerproof_names[i]);
        peerproof_targets[i] = found ? found : (void *)peerproof_absent;
    }
    real_copy = dlsym(library, "cuMemcpyAsync");
    real_peer = dlsym(library, "cuMemcpyPeerAsync");
    real_set = dlsym(library, "cuMemsetD8Async");
    real_attribute = dlsym(library, "cuPointerGetAttribute");
    real_device = dlsym(library, "cuCtxGetDevice");
    real_host = dlsym(library, "cuLaunchHostFunc");
    if (!real_copy || !real_peer || !real_set || !real_attribute || !real_device) die("the real library lacks a call", "copies");
}

/* Told at the end, so that a rule that never struck is seen. */
__attribute__((destructor)) static void finish(void) {
    for (int i = 0; i < rule_count; i++)
        if (rules[i].struck) fprintf(stderr, "interposer: %s struck %u times\n", rules[i].text, rules[i].struck);
}

static int device_of(CUdeviceptr at) {
    unsigned type = 0;
    int device = -1;
    if (real_attribute(&type, POINTER_MEMORY_TYPE, at) != OK || type != TYPE_DEVICE) return -1;
    return real_attribute(&device, POINTER_DEVICE_ORDINAL, at) == OK ? device : -1;
}

/* The rule that strikes this copy, if one does. */
static struct rule *struck(CUdeviceptr to, CUdeviceptr from) {
    int source = device_of(from), destination = device_of(to), carrier = -1;
    if (source < 0 || destination < 0 || source == destination) return NULL;
    real_device(&carrier);
    struct rule *hit = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < rule_count && !hit; i++) {
        struct rule *rule = &rules[i];
        if ((rule->source != -1 && rule->source != source) || (rule->destination != -1 && rule->destination != destination) ||
            (rule->how == PUSH && carrier != source) || (rule->how == PULL && carrier != destination))
            continue;
        if (++rule->seen % rule->nth == 0) {
            rule->struck++;
            hit = rule;
        }
    }
    pthread_mutex_unlock(&lock);
    return hit;
}

static void sleep_on_stream(void *milliseconds) { usleep((useconds_t)(uintptr_t)milliseconds * 1000); }

static void for_ever(void *nothing) {
    (void)nothing;
    for (;;) sleep(3600);
}

static CUresult copy(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream stream) {
    return there ? real_peer(to, there, from, here, bytes, stream) : real_copy(to, from, bytes, stream);
}

static CUresult carry(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream stream) {
    struct rule *rule = struck(to, from);
    if (!rule) return copy(to, there, from, here, bytes, stream);
    CUresult result;
    switch (rule->kind) {
    case ZEROED: return real_set(to, 0, bytes, stream);
    case DROPPED: return OK;
    case SHIFTED: return bytes > 32 ? copy(to + 32, there, from, here, bytes - 32, stream) : OK;
    case PARTIAL: return copy(to, there, from, here, bytes / 2, stream);
    case FLIPPED:
        result = copy(to, there, from, here, bytes, stream);
        return result != OK ? result : real_set(to + bytes / 2, 0x5a, 1, stream);
    case LATE:
    case HANG:
        if (!real_host) die("the real library lacks cuLaunchHostFunc", rule->text);
        result = rule->kind == HANG ? real_host(stream, for_ever, NULL)
                                    : real_host(stream, sleep_on_stream, (void *)(uintptr_t)rule->ms);
        return result != OK ? result : copy(to, there, from, here, bytes, stream);
    }
    return OK;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return carry(to, NULL, from, NULL, bytes, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream stream) {
    return carry(to, there, from, here, bytes, stream);
}
