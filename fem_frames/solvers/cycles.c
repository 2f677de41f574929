/* Multigrid for a batch of samples: one sample per lane of a vector, all levels of one vector's samples at a time.

   A_y = G' diag(c) G on every level. The samples of one vector, a block, go through set-up or solution together: what
   a block needs stays in the cache, and a smoothing step reads the weights c once. fem_frames/solvers/compiled_cycles.py
   compiles this file for REAL float and double, for vectors of WIDTH bytes and for at most POINT unknowns at a point,
   which are consecutive, and calls it; fem_frames/solvers/torch_cycles.py says the same in torch.

   n unknowns of a level, E rows of G, K cells, B samples. Matrices of a caller are (rows, B) with the batch last; inside,
   an array is (rows) of lanes. Vectors over unknowns have one more row, which is zero: the neighbour that grounds. */

#include <stdint.h>
#include <string.h>

#ifndef POINT
#define POINT 1
#endif

typedef REAL real;
typedef real lanes __attribute__((vector_size(WIDTH)));
enum { LANES = WIDTH / sizeof(real), RUN = 256 };

typedef struct { /* a sparse matrix by rows */
    const int64_t *starts;
    const int32_t *columns;
    const real *weights;
} table;

typedef struct {
    int64_t unknowns, weights, cells; /* n, E, K; K is 0 where the weights follow from those of the next finer level */
    int64_t points;
    const int64_t *first;             /* (points + 1) the unknowns at a point */
    const int64_t *starts;            /* (n + 1) the rows of G that meet an unknown */
    const int32_t *neighbours, *rows; /* its other unknown, n if it grounds; its number */
    table set_up, prolongation, restriction;
    int64_t signed_weights, weights_at, inverse_at; /* whether c may be negative; places in a block, in lanes */
} level;

typedef struct {
    const level *levels;
    const int32_t *order; /* (N) the caller's numbers of the finest unknowns */
    int64_t count, given, factor_at, block; /* levels; rows of the data; place of the coarsest factor; size of a block */
} hierarchy;

typedef struct {
    const double *weights; /* (levels, levels, pre + post + 2) by level of start and level: steps, correction, start */
    int64_t pre, post, visits;
} plan;

/* The unknowns at a point are FIRST(L, p), ..., FIRST(L, p + 1) - 1; for one field a point has one unknown. */
#define FIRST(L, p) (POINT == 1 ? (p) : (L)->first[p])

typedef struct { /* vectors of one level */
    lanes *v, *other, *b, *load;
} vectors;

static lanes constant(double value) {
    lanes made;
    for (int l = 0; l < LANES; l++) made[l] = (real)value;
    return made;
}

static lanes larger(lanes x, lanes z) {
    for (int l = 0; l < LANES; l++) x[l] = x[l] > z[l] ? x[l] : z[l];
    return x;
}

/* ---- between a caller's (rows, B) and lanes: row i here is row order[i] there, or i if there is no order; the lanes
   past the last sample repeat it */

static void gather(const real *from, const int32_t *order, int64_t rows, int64_t samples, int64_t block, lanes *to) {
    const int64_t first = block * LANES;
    for (int64_t i = 0; i < rows; i++) {
        const real *row = from + (order ? order[i] : i) * samples;
        if (first + LANES <= samples) memcpy(to + i, row + first, sizeof(lanes));
        else
            for (int l = 0; l < LANES; l++) to[i][l] = row[first + l < samples ? first + l : samples - 1];
    }
}

static void scatter(const lanes *from, const int32_t *order, int64_t rows, int64_t samples, int64_t block, real *to) {
    const int64_t first = block * LANES;
    for (int64_t i = 0; i < rows; i++) {
        real *row = to + (order ? order[i] : i) * samples + first;
        if (first + LANES <= samples) memcpy(row, from + i, sizeof(lanes));
        else memcpy(row, from + i, sizeof(real) * (size_t)(samples - first));
    }
}

/* ---- products */

static void multiply(const table *t, int64_t rows, const lanes *x, lanes *out) {
    for (int64_t i = 0; i < rows; i++) {
        lanes sum = {0};
        for (int64_t k = t->starts[i]; k < t->starts[i + 1]; k++) sum += t->weights[k] * x[t->columns[k]];
        out[i] = sum;
    }
}

static inline lanes row_of_product(const level *L, const lanes *c, const lanes *v, int64_t i) {
    lanes sum = {0};
    const lanes own = v[i];
    for (int64_t k = L->starts[i]; k < L->starts[i + 1]; k++) sum += c[L->rows[k]] * (own - v[L->neighbours[k]]);
    return sum;
}

static void residual(const level *L, const lanes *c, const lanes *v, const lanes *b, lanes *out) {
    for (int64_t i = 0; i < L->unknowns; i++) out[i] = b[i] - row_of_product(L, c, v, i);
}

static lanes dot(const lanes *x, const lanes *z, int64_t n) { /* in runs, so that rounding errors hardly grow with n */
    lanes sum = {0};
    for (int64_t i = 0; i < n; i += RUN) {
        lanes part = {0};
        for (int64_t k = i; k < (i + RUN < n ? i + RUN : n); k++) part += x[k] * z[k];
        sum += part;
    }
    return sum;
}

/* ---- set-up: the weights of all levels, inverse blocks, and the Cholesky factor of the coarsest matrix */

/* The inverses of the blocks of unknowns at each point, (m, m) each, one after the other. */
static void invert_blocks(const level *L, const lanes *c, lanes *out) {
    const lanes half = constant(0.5), one = constant(1.0);
    for (int64_t p = 0; p < L->points; p++) {
        const int64_t first = FIRST(L, p), m = FIRST(L, p + 1) - first;
        memset(out, 0, sizeof(lanes) * (size_t)(m * m));
        for (int64_t i = 0; i < m; i++) {
            lanes sum = {0}, sizes = {0};
            for (int64_t k = L->starts[first + i]; k < L->starts[first + i + 1]; k++) {
                const lanes w = c[L->rows[k]];
                const int64_t other = L->neighbours[k] - first;
                sum += w;
                if (L->signed_weights && L->neighbours[k] < L->unknowns) sizes += larger(w, -w);
                if (POINT > 1 && other >= 0 && other < m) out[i * m + other] -= w;
            }
            const lanes enlarged = half * (sum + sizes); /* A is at most twice the blocks that are used */
            out[i * m + i] = L->signed_weights ? larger(enlarged, sum) : sum;
        }
        for (int64_t k = 0; k < m; k++) { /* Gauss and Jordan's elimination */
            const lanes pivot = one / out[k * m + k];
            out[k * m + k] = one;
            for (int64_t j = 0; j < m; j++) out[k * m + j] *= pivot;
            for (int64_t i = 0; i < m; i++) {
                if (i == k) continue;
                const lanes factor = out[i * m + k];
                out[i * m + k] = (lanes){0};
                for (int64_t j = 0; j < m; j++) out[i * m + j] -= factor * out[k * m + j];
            }
        }
        out += m * m;
    }
}

/* A weight times a row of an inverse block (m) times r (m). */
static inline lanes row_of_inverse(const lanes *row, lanes w, const lanes *r, int64_t m) {
    lanes sum = w * row[0] * r[0];
    for (int64_t k = 1; k < m; k++) sum += w * row[k] * r[k];
    return sum;
}

static double root(double x) { return __builtin_sqrt(x); }

/* Lower triangle (n, n) with the reciprocal diagonal; the lane that has no positive pivot, or -1. */
static int factorise(const level *L, const lanes *c, lanes *out) {
    const int64_t n = L->unknowns;
    memset(out, 0, sizeof(lanes) * (size_t)(n * n));
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = L->starts[i]; k < L->starts[i + 1]; k++) {
            out[i * n + i] += c[L->rows[k]];
            if (L->neighbours[k] < n) out[i * n + L->neighbours[k]] -= c[L->rows[k]];
        }
    for (int64_t j = 0; j < n; j++) {
        lanes pivot = out[j * n + j];
        for (int64_t k = 0; k < j; k++) pivot -= out[j * n + k] * out[j * n + k];
        for (int l = 0; l < LANES; l++) {
            if (!(pivot[l] > 0)) return l;
            pivot[l] = (real)(1 / root((double)pivot[l]));
        }
        out[j * n + j] = pivot;
        for (int64_t i = j + 1; i < n; i++) {
            lanes sum = out[i * n + j];
            for (int64_t k = 0; k < j; k++) sum -= out[i * n + k] * out[j * n + k];
            out[i * n + j] = sum * pivot;
        }
    }
    return -1;
}

static void solve_coarsest(const hierarchy *h, const lanes *block, const lanes *b, lanes *v) {
    const int64_t n = h->levels[0].unknowns;
    const lanes *factor = block + h->factor_at;
    for (int64_t i = 0; i < n; i++) {
        lanes sum = b[i];
        for (int64_t k = 0; k < i; k++) sum -= factor[i * n + k] * v[k];
        v[i] = sum * factor[i * n + i];
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        lanes sum = v[i];
        for (int64_t k = i + 1; k < n; k++) sum -= factor[k * n + i] * v[k];
        v[i] = sum * factor[i * n + i];
    }
}

/* Fills blocks [from, to) of `packed` from data (given, B); the sample whose coarsest matrix is not positive definite,
   or -1. `space` has room for the data of one block. */
int64_t set_up(const hierarchy *h, const real *data, int64_t samples, int64_t from, int64_t to, lanes *packed,
               lanes *space) {
    for (int64_t number = from; number < to; number++) {
        lanes *block = packed + (number - from) * h->block;
        gather(data, 0, h->given, samples, number, space);
        int64_t cells = h->given;
        for (int64_t j = h->count - 1; j >= 0; j--) {
            const level *L = h->levels + j;
            const lanes *source = j == h->count - 1 ? space : block + h->levels[j + 1].weights_at;
            if (L->cells) { /* one number per cell: the mean over its children, which are contiguous */
                const int64_t children = cells / L->cells;
                const lanes share = constant(1.0 / (double)children);
                for (int64_t i = 0; children > 1 && i < L->cells; i++) {
                    lanes sum = space[i * children];
                    for (int64_t k = 1; k < children; k++) sum += space[i * children + k];
                    space[i] = sum * share;
                }
                cells = L->cells;
                source = space;
            }
            if (L->set_up.starts) multiply(&L->set_up, L->weights, source, block + L->weights_at);
            else memcpy(block + L->weights_at, source, sizeof(lanes) * (size_t)L->weights);
            invert_blocks(L, block + L->weights_at, block + L->inverse_at);
        }
        const int bad = factorise(h->levels, block + h->levels[0].weights_at, block + h->factor_at);
        if (bad >= 0) {
            const int64_t sample = number * LANES + bad;
            return sample < samples ? sample : samples - 1;
        }
    }
    return -1;
}

/* ---- cycles */

static void swap(vectors *at) {
    lanes *v = at->v;
    at->v = at->other;
    at->other = v;
}

/* v + w D^-1 (b - A v); `zero` says that v is zero and has no values yet. */
static void smooth(const level *L, const lanes *block, vectors *at, double weight, int zero) {
    const lanes *c = block + L->weights_at, *D = block + L->inverse_at, *v = at->v, *b = at->b;
    const lanes w = constant(weight);
    lanes *out = at->other, r[POINT];
    for (int64_t p = 0; p < L->points; p++) {
        const int64_t first = FIRST(L, p), m = FIRST(L, p + 1) - first;
        for (int64_t i = first; i < first + m; i++) r[i - first] = zero ? b[i] : b[i] - row_of_product(L, c, v, i);
        for (int64_t i = 0; i < m; i++) {
            const lanes step = row_of_inverse(D + i * m, w, r, m);
            out[first + i] = zero ? step : v[first + i] + step;
        }
        D += m * m;
    }
    swap(at);
}

static void prolong(const level *L, const lanes *coarse, lanes *v, double factor, int add) {
    const lanes f = constant(factor);
    const table *P = &L->prolongation;
    for (int64_t i = 0; i < L->unknowns; i++) {
        lanes sum = {0};
        for (int64_t k = P->starts[i]; k < P->starts[i + 1]; k++) sum += P->weights[k] * coarse[P->columns[k]];
        v[i] = add ? v[i] + f * sum : f * sum;
    }
}

/* One cycle on level j for A v = b; `zero` says that v is zero and has no values yet. */
static void cycle(const hierarchy *h, const lanes *block, const plan *p, vectors *at, int64_t j, int64_t top, int zero) {
    const level *L = h->levels + j;
    vectors *own = at + j, *below = at + j - 1;
    if (j == 0) {
        solve_coarsest(h, block, own->b, own->v);
        return;
    }
    const double *weights = p->weights + (top * h->count + j) * (p->pre + p->post + 2);
    for (int64_t step = 0; step < p->pre; step++, zero = 0) smooth(L, block, own, weights[step], zero);
    if (!zero) residual(L, block + L->weights_at, own->v, own->b, own->other);
    multiply(&L->restriction, h->levels[j - 1].unknowns, zero ? own->b : own->other, below->b);
    for (int64_t visit = 0; visit < (j == 1 ? 1 : p->visits); visit++) cycle(h, block, p, at, j - 1, top, visit == 0);
    prolong(L, below->v, own->v, weights[p->pre + p->post], !zero);
    for (int64_t step = 0; step < p->post; step++) smooth(L, block, own, weights[p->pre + step], 0);
}

/* Full multigrid for the loads of the finest level; the solution is in at[count - 1].v. */
static void full(const hierarchy *h, const lanes *block, const plan *p, vectors *at) {
    const int64_t last = h->count - 1;
    for (int64_t j = last; j > 0; j--)
        multiply(&h->levels[j].restriction, h->levels[j - 1].unknowns, at[j].load, at[j - 1].load);
    solve_coarsest(h, block, at[0].load, at[0].v);
    for (int64_t j = 1; j <= last; j++) {
        prolong(h->levels + j, at[j - 1].v, at[j].v, p->weights[(j * h->count + j + 1) * (p->pre + p->post + 2) - 1], 0);
        lanes *b = at[j].b;
        at[j].b = at[j].load; /* only this cycle's first level has the load itself as its right-hand side */
        cycle(h, block, p, at, j, j, 0);
        at[j].b = b;
    }
}

static lanes *reserve(const hierarchy *h, lanes *space, vectors *at) {
    for (int64_t j = 0; j < h->count; j++) {
        const int64_t n = h->levels[j].unknowns;
        lanes **all[] = {&at[j].v, &at[j].other, &at[j].b, &at[j].load};
        for (int k = 0; k < 4; k++, space += n + 1) {
            *all[k] = space;
            memset(space + n, 0, sizeof(lanes));
        }
    }
    return space;
}

static lanes quotient(lanes x, lanes z) { /* x / z where both are positive and z is finite, and 0 elsewhere */
    for (int l = 0; l < LANES; l++) x[l] = x[l] > 0 && z[l] > 0 && __builtin_isfinite(z[l]) ? x[l] / z[l] : 0;
    return x;
}

/* Steps of conjugate gradients for A x = b, preconditioned by a cycle. */
static void conjugate_directions(const hierarchy *h, const lanes *block, const plan *p, vectors *at, lanes *x, lanes *r,
                                 lanes *direction, lanes *product, int64_t steps) {
    const int64_t last = h->count - 1, n = h->levels[last].unknowns;
    const level *L = h->levels + last;
    const lanes *c = block + L->weights_at;
    lanes before = {0};
    for (int64_t step = 0; step < steps; step++) {
        lanes *b = at[last].b;
        at[last].b = r;
        cycle(h, block, p, at, last, last, 1);
        at[last].b = b;
        const lanes *z = at[last].v;
        const lanes square = dot(r, z, n), ratio = quotient(square, before);
        for (int64_t i = 0; i < n; i++) direction[i] = step ? z[i] + ratio * direction[i] : z[i];
        lanes curvature = {0};
        for (int64_t i = 0; i < n; i += RUN) {
            lanes part = {0};
            for (int64_t k = i; k < (i + RUN < n ? i + RUN : n); k++) {
                product[k] = row_of_product(L, c, direction, k);
                part += direction[k] * product[k];
            }
            curvature += part;
        }
        const lanes size = quotient(square, curvature);
        for (int64_t i = 0; i < n; i++) {
            x[i] += size * direction[i];
            r[i] -= size * product[i];
        }
        before = square;
    }
}

/* The square of the estimated error of v: the sum of r' D^-1 r over its residuals restricted to all levels. */
static lanes estimated(const hierarchy *h, const lanes *block, vectors *at, const lanes *v, const lanes *b) {
    const int64_t last = h->count - 1;
    const lanes one = constant(1.0);
    residual(h->levels + last, block + h->levels[last].weights_at, v, b, at[last].b);
    lanes sum = {0};
    for (int64_t j = last; j > 0; j--) {
        const level *L = h->levels + j;
        const lanes *D = block + L->inverse_at, *r = at[j].b;
        for (int64_t start = 0; start < L->points; start += RUN) {
            lanes part = {0};
            for (int64_t p = start; p < (start + RUN < L->points ? start + RUN : L->points); p++) {
                const int64_t first = FIRST(L, p), m = FIRST(L, p + 1) - first;
                for (int64_t i = 0; i < m; i++) part += row_of_inverse(D + i * m, one, r + first, m) * r[first + i];
                D += m * m;
            }
            sum += part;
        }
        multiply(&L->restriction, h->levels[j - 1].unknowns, r, at[j - 1].b);
    }
    solve_coarsest(h, block, at[0].b, at[0].other);
    return sum + dot(at[0].b, at[0].other, h->levels[0].unknowns);
}

/* The room that `answer` and the functions below need, in lanes. */
int64_t room(const hierarchy *h) {
    int64_t sum = 4 * (h->levels[h->count - 1].unknowns + 1);
    for (int64_t j = 0; j < h->count; j++) sum += 4 * (h->levels[j].unknowns + 1);
    return sum;
}

/* v (N, B) for b (N, B) in blocks [from, to): full multigrid if `start` is 0, one cycle from zero if it is 1, what v
   holds already if it is 2; then steps of conjugate gradients. `squares`, where wanted, gets the estimated square of the
   error of v and then the product of v and b, (2, B). `packed` begins with block `from`. */
void answer(const hierarchy *h, const lanes *packed, const plan *p, const real *b, real *v, real *squares,
            int64_t samples, int64_t from, int64_t to, int64_t start, int64_t steps, lanes *space) {
    const int64_t last = h->count - 1, n = h->levels[last].unknowns;
    vectors at[h->count];
    lanes *more = reserve(h, space, at);
    lanes *x = more, *r = x + n + 1, *direction = r + n + 1, *product = direction + n + 1;
    memset(x + n, 0, sizeof(lanes));
    memset(direction + n, 0, sizeof(lanes));
    for (int64_t number = from; number < to; number++) {
        const lanes *block = packed + (number - from) * h->block;
        gather(b, h->order, n, samples, number, at[last].load);
        if (start == 0) full(h, block, p, at);
        if (start == 1) {
            lanes *kept = at[last].b;
            at[last].b = at[last].load;
            cycle(h, block, p, at, last, last, 1);
            at[last].b = kept;
        }
        if (start == 2) gather(v, h->order, n, samples, number, at[last].v);
        if (steps) {
            memcpy(x, at[last].v, sizeof(lanes) * (size_t)n);
            residual(h->levels + last, block + h->levels[last].weights_at, x, at[last].load, r);
            conjugate_directions(h, block, p, at, x, r, direction, product, steps);
        }
        const lanes *found = steps ? x : at[last].v;
        scatter(found, h->order, n, samples, number, v);
        if (squares) {
            const lanes pair[] = {estimated(h, block, at, found, at[last].load), dot(found, at[last].load, n)};
            scatter(pair, 0, 2, samples, number, squares);
        }
    }
}

/* out (N, B) = A v. */
void multiply_by_A(const hierarchy *h, const lanes *packed, const real *v, real *out, int64_t samples, int64_t from,
                   int64_t to, lanes *space) {
    const level *L = h->levels + h->count - 1;
    const int64_t n = L->unknowns;
    lanes *x = space, *made = x + n + 1;
    memset(x + n, 0, sizeof(lanes));
    for (int64_t number = from; number < to; number++) {
        const lanes *c = packed + (number - from) * h->block + L->weights_at;
        gather(v, h->order, n, samples, number, x);
        for (int64_t i = 0; i < n; i++) made[i] = row_of_product(L, c, x, i);
        scatter(made, h->order, n, samples, number, out);
    }
}

/* out (B): the squares of the estimated errors of v. */
void estimate(const hierarchy *h, const lanes *packed, const real *v, const real *b, real *out, int64_t samples,
              int64_t from, int64_t to, lanes *space) {
    const int64_t last = h->count - 1, n = h->levels[last].unknowns;
    vectors at[h->count];
    reserve(h, space, at);
    for (int64_t number = from; number < to; number++) {
        gather(v, h->order, n, samples, number, at[last].v);
        gather(b, h->order, n, samples, number, at[last].load);
        const lanes square = estimated(h, packed + (number - from) * h->block, at, at[last].v, at[last].load);
        scatter(&square, 0, 1, samples, number, out);
    }
}
