// A library with the functions of NVML that package gpu uses, and two made-up
// devices. The second supports less. Source of the signatures: nvml.h.
#include <stdint.h>

typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static int open_ = 0;

int nvmlInit_v2(void) { open_++; return 0; }
int nvmlShutdown(void) { open_--; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return open_ == 1 ? 0 : 1; /* NVML_ERROR_UNINITIALIZED */ }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(uintptr_t)(i + 1); return i < 2 ? 0 : 2; }
int nvmlDeviceGetUtilizationRates(void *d, utilization_t *u) {
	u->gpu = d == (void *)1 ? 90 : 30;
	u->memory = 11;
	return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) {
	m->total = 80ULL << 30;
	m->used = d == (void *)1 ? 20ULL << 30 : 60ULL << 30;
	m->free = m->total - m->used;
	return 0;
}
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *t) {
	*t = d == (void *)1 ? 84 : 51;
	return sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, unsigned long long *n) {
	if (d != (void *)1) return 3; /* NVML_ERROR_NOT_SUPPORTED */
	*n = 3;
	return kind == 1 && counter == 0 ? 0 : 2;
}
