/* Passes over n values of a coefficient or a source; fem_frames/problem/compiled_values.py compiles and calls them. */

#include <stdint.h>

typedef REAL real;
__attribute__((simd("notinbranch"))) real EXP(real);

/* values[i] = exp(values[i]) */
void exponentials(real *restrict values, int64_t n) {
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) values[i] = EXP(values[i]);
}

/* The least and the greatest value; the return value says whether one is NaN. */
int64_t extremes(const real *restrict values, int64_t n, real *restrict found) {
    real low = values[0], high = values[0];
    int wrong = 0;
    #pragma omp simd reduction(min : low) reduction(max : high) reduction(| : wrong)
    for (int64_t i = 0; i < n; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
        wrong |= values[i] != values[i];
    }
    found[0] = low;
    found[1] = high;
    return wrong;
}
