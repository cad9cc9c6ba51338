/* A driver's libcuda with one card, for tests; FAKE_DRIVER says how it is ill. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_NOT_READY = 802 };

static int is(const char *way) {
    const char *told = getenv("FAKE_DRIVER");
    return told && strcmp(told, way) == 0;
}

int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuInit(unsigned flags) {
    if (is("crash")) *(volatile int *)0 = 1;
    if (is("hang")) sleep(600);
    return is("not-ready") ? SYSTEM_NOT_READY : OK;
}
int cuDeviceGetCount(int *count) { *count = 1; return OK; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_SYSTEM_NOT_READY"; return OK; }
