/* NVML with two cards, for tests of what watches GPUs. FAKE_NVML says what is wrong with it:
   hang, crash or lost (of the second card), from the third reading on; wsl; xid; refused.
   Compiled with -DOLD it lacks what newer drivers have. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; u64 used; unsigned instance, compute; } Process;
typedef struct { void *device; u64 type, data; unsigned instance, compute; } Event;
enum { OK = 0, NOT_SUPPORTED = 3, SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };

static int cards[2];
static int num_readings, num_events;

static int is(const char *mode) {
    const char *set = getenv("FAKE_NVML");
    return set && strcmp(set, mode) == 0;
}
static int index_of(void *device) { return device == (void *)&cards[1]; }
static int is_ill(void) { return num_readings > 2 * 2; }
/* What every reading of a card goes through. */
static int state(void *device) {
    if (is("lost") && index_of(device) == 1 && is_ill()) return LOST;
    return OK;
}
/* The second card is one under Windows' driver, and so are both in WSL. */
static int few(void *device) { return state(device) ? state(device) : is("wsl") ? NOT_SUPPORTED : OK; }
static int number(void *device, unsigned *value, unsigned first, unsigned second) {
    *value = index_of(device) ? second : first;
    return state(device);
}

int nvmlInitWithFlags(unsigned flags) { return is("refused") ? NOT_LOADED : OK; }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
/* In the other order than on the PCI bus. */
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &cards[1 - index];
    return OK;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    strncpy(text, index_of(device) ? "NVIDIA GeForce RTX 4090" : "NVIDIA GeForce RTX 3070", size);
    return OK;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    strncpy(text, index_of(device) ? "GPU-second" : "GPU-first", size);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, index_of(device) ? "00000000:41:00.0" : "00000000:01:00.0");
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, Rates *rates) {
    num_readings++;
    if (is("hang") && is_ill()) sleep(600);
    if (is("crash") && is_ill()) abort();
    rates->gpu = index_of(device) ? 5 : 97;
    rates->memory = index_of(device) ? 1 : 60;
    return state(device);
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    memory->total = (index_of(device) ? 24ULL : 8ULL) << 30;
    memory->used = 2ULL << 30;
    memory->free = memory->total - memory->used;
    return state(device);
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *value) { return number(device, value, 81, 40); }
int nvmlDeviceGetPowerUsage(void *device, unsigned *value) { return number(device, value, 211500, 20000); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *value) { return number(device, value, 220000, 450000); }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *value) { return number(device, value, 1890, 210); }
int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *value) { return number(device, value, 2100, 3165); }
int nvmlDeviceGetFanSpeed(void *device, unsigned *value) { *value = 45; return few(device); }
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, u64 *value) {
    *value = 0;
    return few(device);
}
int nvmlDeviceGetPcieThroughput(void *device, int counter, unsigned *value) {
    return number(device, value, 1000, 0);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *bits) {
    *bits = index_of(device) ? 1 : 1 << 5;
    return state(device);
}
#ifndef OLD
int nvmlDeviceGetTotalEnergyConsumption(void *device, u64 *value) { *value = 5000; return few(device); }
#endif

static int list(void *device, unsigned *count, Process *processes) {
    int failure = few(device);
    if (failure) return failure;
    if (index_of(device)) { *count = 0; return OK; }
    if (!processes) { *count = 2; return SMALL; }
    *count = 2;
    memset(processes, 0, 2 * sizeof *processes);
    processes[0].pid = (unsigned)getppid();
    processes[0].used = 1ULL << 30;
    processes[1].pid = 4190002;
    processes[1].used = ~0ULL; /* not reported */
    return OK;
}
static int none(void *device, unsigned *count) { *count = 0; return few(device); }
#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(void *d, unsigned *n, Process *p) { return list(d, n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *d, unsigned *n, Process *p) { return none(d, n); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, Process *p) { return list(d, n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *n, Process *p) { return none(d, n); }
int nvmlEventSetCreate(void **set) { *set = &num_events; return is("wsl") ? NOT_SUPPORTED : OK; }
int nvmlDeviceRegisterEvents(void *device, u64 types, void *set) { return OK; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    if (!is("xid") || num_events) return TIMEOUT;
    num_events++;
    memset(event, 0, sizeof *event);
    event->device = &cards[1];
    event->type = 8;
    event->data = 79;
    return OK;
}
#endif
