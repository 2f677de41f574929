/* The matrices of a multigrid for a batch of samples: one sample per lane of a vector, all levels of one vector's
   samples at a time.

   A_y = G' diag(c) G on every level. The samples of one vector, a block, go through set-up or solution together: a
   smoothing step reads the weights c once. fem_frames/solvers/compiled_cycles.py compiles this file with sweeps.c and
   cycles.c behind it, for REAL float and double, for vectors of WIDTH bytes and for at most POINT unknowns at a point,
   which are consecutive; fem_frames/solvers/torch_cycles.py says the same in torch.

   n unknowns of a level, E rows of G, B samples. Matrices of a caller are (rows, B) with the batch last;
   inside, an array is (rows) of lanes. Vectors over unknowns have one more row, which is zero: the neighbour that
   grounds. Chunks are parts of a level's points, which follow each other; sweeps.c says what for. */

#include <stdint.h>
#include <string.h>

#ifndef POINT
#define POINT 1
#endif

typedef REAL real;
typedef real lanes __attribute__((vector_size(WIDTH)));
enum { LANES = WIDTH / sizeof(real) };

typedef struct { /* a sparse matrix by rows */
    const int64_t *starts;
    const int32_t *columns;
    const real *weights;
} table;

typedef struct {
    int64_t count;
    const int64_t *points;   /* (count + 1) where a chunk begins */
    const int64_t *inverses; /* (count + 1) where its inverse blocks begin */
    const int64_t *edges;    /* (count + 1) where the edges to higher unknowns begin; grounds follow all edges */
    const int64_t *reach;    /* (count) the chunks that have all neighbours of this chunk and of those before it */
    const int64_t *coarse;   /* (count + 1) the coarse unknowns that depend on the chunks before alone */
} chunks;

typedef struct {
    int64_t unknowns, weights, data;  /* n, E; numbers that the weights follow from, 0 if those are the finer weights */
    const int64_t *first;             /* (points + 1) the unknowns at a point */
    const int64_t *starts;            /* (n + 1) the rows of G that meet an unknown */
    const int32_t *neighbours, *rows; /* its other unknown, n if it grounds; its number */
    chunks chunks;
    table set_up, prolongation, restriction;
    int64_t signed_weights, weights_at, inverse_at; /* whether c may be negative; places in a block, in lanes */
} level;

typedef struct {
    const level *levels;
    const int32_t *order;     /* (N) the caller's numbers of the finest unknowns */
    int64_t count, given;     /* levels; rows of the finest level's data */
    int64_t copied;           /* whether these are copied first, because each row is read several times */
    int64_t factor_at, block; /* place of the coarsest factor; size of a block */
} hierarchy;

/* The unknowns at a point are FIRST(L, p), ..., FIRST(L, p + 1) - 1; for one field a point has one unknown. */
#define FIRST(L, p) (POINT == 1 ? (p) : (L)->first[p])

static lanes constant(double value) {
    lanes made;
    for (int l = 0; l < LANES; l++) made[l] = (real)value;
    return made;
}

static inline lanes larger(lanes x, lanes z) { /* by masks: compilers take a loop over lanes one by one */
    typedef __typeof__(x > z) mask;
    const mask first = x > z;
    return (lanes)((first & (mask)x) | (~first & (mask)z));
}

/* ---- between a caller's (rows, B) and lanes: row i here is row order[i] there, or i if there is no order; the lanes
   past the last sample repeat it */

typedef struct {
    const int32_t *order;
    int64_t samples, block; /* B; the number of the block */
} place;

static inline lanes row_at(const real *from, const place *at, int64_t i) {
    const int64_t first = at->block * LANES, samples = at->samples;
    const real *row = from + (at->order ? at->order[i] : i) * samples;
    lanes found;
    if (first + LANES <= samples) memcpy(&found, row + first, sizeof(lanes));
    else
        for (int l = 0; l < LANES; l++) found[l] = row[first + l < samples ? first + l : samples - 1];
    return found;
}

static void gather(const real *from, const place *at, int64_t begin, int64_t end, lanes *to) {
    for (int64_t i = begin; i < end; i++) to[i] = row_at(from, at, i);
}

static void scatter(const lanes *from, const place *at, int64_t begin, int64_t end, real *to) {
    const int64_t first = at->block * LANES, samples = at->samples;
    const int32_t *order = at->order;
    for (int64_t i = begin; i < end; i++) {
        real *row = to + (order ? order[i] : i) * samples + first;
        if (first + LANES <= samples) memcpy(row, from + i, sizeof(lanes));
        else memcpy(row, from + i, sizeof(real) * (size_t)(samples - first));
    }
}

/* ---- products */

static void multiply(const table *t, int64_t begin, int64_t end, const lanes *x, lanes *out) {
    for (int64_t i = begin; i < end; i++) {
        lanes sum = {0};
        for (int64_t k = t->starts[i]; k < t->starts[i + 1]; k++) sum += t->weights[k] * x[t->columns[k]];
        out[i] = sum;
    }
}

/* The same for x in a caller's array. */
static void multiply_given(const table *t, int64_t begin, int64_t end, const real *x, const place *at, lanes *out) {
    for (int64_t i = begin; i < end; i++) {
        lanes sum = {0};
        for (int64_t k = t->starts[i]; k < t->starts[i + 1]; k++) sum += t->weights[k] * row_at(x, at, t->columns[k]);
        out[i] = sum;
    }
}

static inline lanes row_of_product(const level *L, const lanes *c, const lanes *v, int64_t i) {
    lanes sum = {0};
    const lanes own = v[i];
    for (int64_t k = L->starts[i]; k < L->starts[i + 1]; k++) sum += c[L->rows[k]] * (own - v[L->neighbours[k]]);
    return sum;
}

/* ---- set-up: the weights of all levels, inverse blocks, and the Cholesky factor of the coarsest matrix */

/* The inverses of the blocks of unknowns at each point of a chunk, (m, m) each, one after the other. */
static void invert_blocks(const level *L, const lanes *c, lanes *out, int64_t chunk) {
    const lanes half = constant(0.5), one = constant(1.0);
    out += L->chunks.inverses[chunk];
    for (int64_t p = L->chunks.points[chunk]; p < L->chunks.points[chunk + 1]; p++) {
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

static void weigh(const level *L, int64_t begin, int64_t end, const lanes *source, const real *data, const place *at,
                  lanes *c) {
    if (source) multiply(&L->set_up, begin, end, source, c);
    else multiply_given(&L->set_up, begin, end, data, at, c);
}

/* Weights and inverse blocks, chunk by chunk: those of a chunk need no edges of later ones. The weights follow from
   `source`, or if that is null from a caller's data. */
static void set_up_level(const level *L, const lanes *source, const real *data, const place *at, lanes *c,
                         lanes *inverse) {
    const chunks *all = &L->chunks;
    weigh(L, all->edges[all->count], L->weights, source, data, at, c);
    for (int64_t k = 0; k < all->count; k++) {
        weigh(L, all->edges[k], all->edges[k + 1], source, data, at, c);
        invert_blocks(L, c, inverse, k);
    }
}

/* One number per cell: the mean over its children, which are contiguous, of values or of a caller's data. */
static void average(lanes *values, const real *data, const place *at, int64_t cells, int64_t children) {
    const lanes share = constant(1.0 / (double)children);
    for (int64_t i = 0; i < cells; i++) {
        lanes sum = {0};
        for (int64_t k = i * children; k < (i + 1) * children; k++) sum += data ? row_at(data, at, k) : values[k];
        values[i] = sum * share;
    }
}

/* Fills a block from data (given, B); the lane whose coarsest matrix is not positive definite, or -1. `space` has room
   for the data that are copied, or for their means over the children of a cell. */
static int set_up_block(const hierarchy *h, const real *data, int64_t samples, int64_t number, lanes *block,
                        lanes *space) {
    const place at = {0, samples, number};
    int64_t rows = h->given;
    if (h->copied) gather(data, &at, 0, rows, space);
    for (int64_t j = h->count - 1; j >= 0; j--) {
        const level *L = h->levels + j;
        if (L->data && L->data < rows) average(space, rows == h->given ? data : 0, &at, L->data, rows / L->data);
        if (L->data) rows = L->data;
        const lanes *source = !L->data ? block + L[1].weights_at : h->copied || rows < h->given ? space : 0;
        set_up_level(L, source, data, &at, block + L->weights_at, block + L->inverse_at);
    }
    return factorise(h->levels, block + h->levels[0].weights_at, block + h->factor_at);
}

/* Fills blocks [from, to) of `packed` from data (given, B); the sample whose coarsest matrix is not positive definite,
   or -1. `packed` begins with block `from`. */
int64_t set_up(const hierarchy *h, const real *data, int64_t samples, int64_t from, int64_t to, lanes *packed,
               lanes *space) {
    for (int64_t number = from; number < to; number++) {
        const int bad = set_up_block(h, data, samples, number, packed + (number - from) * h->block, space);
        const int64_t sample = number * LANES + bad;
        if (bad >= 0) return sample < samples ? sample : samples - 1;
    }
    return -1;
}
