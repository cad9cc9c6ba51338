/* A driver's NVML with one card, for tests; FAKE_DRIVER says how it is ill. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
enum { OK = 0, NOT_SUPPORTED = 3, MISMATCH = 18 };

static int is(const char *way) {
    const char *told = getenv("FAKE_DRIVER");
    return told && strcmp(told, way) == 0;
}

int nvmlInitWithFlags(unsigned flags) {
    if (is("crash")) *(volatile int *)0 = 1;
    if (is("hang")) sleep(600);
    return is("mismatch") ? MISMATCH : OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == MISMATCH ? "Driver/library version mismatch" : "Not Supported";
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.95.05", size); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return OK; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    strncpy(text, "NVIDIA GeForce RTX 3090", size);
    return OK;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { strncpy(text, "GPU-1", size); return OK; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    memory->total = 24ULL << 30;
    memory->free = 23ULL << 30;
    memory->used = 1ULL << 30;
    return OK;
}
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, "00000000:05:00.0");
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = 8, *minor = 6;
    return OK;
}
int nvmlDeviceGetDriverModel_v2(void *device, int *now, int *next) { return NOT_SUPPORTED; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { return NOT_SUPPORTED; }
int nvmlDeviceGetPersistenceMode(void *device, int *mode) { *mode = 1; return OK; }
int nvmlDeviceGetDisplayActive(void *device, int *mode) { *mode = 1; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
    *bits = 1;
    return OK;
}
/* nvmlDeviceGetComputeRunningProcesses_v3 is missing, as in a driver older than the question. */
