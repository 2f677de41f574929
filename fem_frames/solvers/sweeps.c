/* Sweeps over the chunks of a level; matrices.c comes before this file, cycles.c after it.

   On fine levels the vectors of a block do not fit into the caches, and moving them takes most of the time. So steps that
   follow each other are the stages of one sweep: a stage works on a chunk as soon as the stage before it has done all
   neighbours of that chunk, and finds them in the cache. Two smoothing steps may alternate between two vectors: the
   graph is symmetric, so when a stage overwrites an unknown, the stage before it has used it for all neighbours. */

typedef struct { /* a sum over chunks, compensated: rounding errors do not grow with n */
    lanes total, lost;
} sum;

static void add(sum *to, lanes part) {
    part -= to->lost;
    const lanes total = to->total + part;
    to->lost = (total - to->total) - part;
    to->total = total;
}

typedef struct stage stage;
struct stage { /* what a step does to one chunk, and what it needs of the following */
    void (*run)(const stage *, int64_t chunk);
    int64_t neighbours; /* whether it reads what the stage before it writes at neighbours */
    const level *L;
    const lanes *c, *inverse; /* the weights of the level and its inverse blocks */
    const lanes *x, *b;
    lanes *out;
    lanes factor;
    sum *sum;
    const place *place; /* of a caller's array */
    const real *from;
    real *to;
};

#define POINTS(s, chunk, p) int64_t p = (s)->L->chunks.points[chunk]; p < (s)->L->chunks.points[chunk + 1]; p++
#define ROWS(s, chunk, i) \
    int64_t i = FIRST((s)->L, (s)->L->chunks.points[chunk]), \
            after_##i = FIRST((s)->L, (s)->L->chunks.points[chunk + 1]); \
    i < after_##i; i++

/* out = x + factor D^-1 (b - A x) */
static void smoothing(const stage *s, int64_t chunk) {
    const lanes *inverse = s->inverse + s->L->chunks.inverses[chunk];
    const lanes *c = s->c, *x = s->x, *b = s->b, w = s->factor;
    lanes *out = s->out, r[POINT];
    for (POINTS(s, chunk, p)) {
        const int64_t first = FIRST(s->L, p), m = FIRST(s->L, p + 1) - first;
        for (int64_t i = first; i < first + m; i++) r[i - first] = b[i] - row_of_product(s->L, c, x, i);
        for (int64_t i = 0; i < m; i++) out[first + i] = x[first + i] + row_of_inverse(inverse + i * m, w, r, m);
        inverse += m * m;
    }
}

/* out = factor D^-1 b: the same from zero */
static void smoothing_of_zero(const stage *s, int64_t chunk) {
    const lanes *inverse = s->inverse + s->L->chunks.inverses[chunk];
    for (POINTS(s, chunk, p)) {
        const int64_t first = FIRST(s->L, p), m = FIRST(s->L, p + 1) - first;
        for (int64_t i = 0; i < m; i++) s->out[first + i] = row_of_inverse(inverse + i * m, s->factor, s->b + first, m);
        inverse += m * m;
    }
}

/* out = b - A x */
static void residual(const stage *s, int64_t chunk) {
    for (ROWS(s, chunk, i)) s->out[i] = s->b[i] - row_of_product(s->L, s->c, s->x, i);
}

/* out = A x, with the product of x and out */
static void product(const stage *s, int64_t chunk) {
    lanes part = {0};
    for (ROWS(s, chunk, i)) {
        const lanes found = row_of_product(s->L, s->c, s->x, i);
        s->out[i] = found;
        part += s->x[i] * found;
    }
    add(s->sum, part);
}

/* The product of x and b. */
static void dot(const stage *s, int64_t chunk) {
    lanes part = {0};
    for (ROWS(s, chunk, i)) part += s->x[i] * s->b[i];
    add(s->sum, part);
}

/* The product of b and D^-1 b. */
static void scaled_square(const stage *s, int64_t chunk) {
    const lanes *inverse = s->inverse + s->L->chunks.inverses[chunk], one = constant(1.0);
    lanes part = {0};
    for (POINTS(s, chunk, p)) {
        const int64_t first = FIRST(s->L, p), m = FIRST(s->L, p + 1) - first;
        for (int64_t i = 0; i < m; i++)
            part += row_of_inverse(inverse + i * m, one, s->b + first, m) * s->b[first + i];
        inverse += m * m;
    }
    add(s->sum, part);
}

/* out += factor x */
static void addition(const stage *s, int64_t chunk) {
    for (ROWS(s, chunk, i)) s->out[i] += s->factor * s->x[i];
}

/* out = b + factor out */
static void direction(const stage *s, int64_t chunk) {
    for (ROWS(s, chunk, i)) s->out[i] = s->b[i] + s->factor * s->out[i];
}

/* out = P' x on the next coarser level, where the chunk and those before it give all of it */
static void restriction(const stage *s, int64_t chunk) {
    multiply(&s->L->restriction, s->L->chunks.coarse[chunk], s->L->chunks.coarse[chunk + 1], s->x, s->out);
}

static inline lanes row_of_prolongation(const stage *s, int64_t i) {
    const table *P = &s->L->prolongation;
    lanes sum = {0};
    for (int64_t k = P->starts[i]; k < P->starts[i + 1]; k++) sum += P->weights[k] * s->x[P->columns[k]];
    return s->factor * sum;
}

/* out = factor P x */
static void prolongation(const stage *s, int64_t chunk) {
    for (ROWS(s, chunk, i)) s->out[i] = row_of_prolongation(s, i);
}

/* out += factor P x */
static void correction(const stage *s, int64_t chunk) {
    for (ROWS(s, chunk, i)) s->out[i] += row_of_prolongation(s, i);
}

static void input(const stage *s, int64_t chunk) {
    const int64_t *points = s->L->chunks.points + chunk;
    gather(s->from, s->place, FIRST(s->L, points[0]), FIRST(s->L, points[1]), s->out);
}

static void output(const stage *s, int64_t chunk) {
    const int64_t *points = s->L->chunks.points + chunk;
    scatter(s->x, s->place, FIRST(s->L, points[0]), FIRST(s->L, points[1]), s->to);
}

/* Runs stages of one level over all its chunks, each as far as the one before it allows. */
static void sweep(const stage *stages, int64_t count) {
    if (count == 0) return;
    const chunks *all = &stages->L->chunks;
    int64_t done[count];
    memset(done, 0, sizeof(done));
    while (done[0] < all->count) {
        stages[0].run(stages, done[0]++);
        for (int64_t s = 1; s < count; s++)
            while (done[s] < all->count && (stages[s].neighbours ? all->reach[done[s]] : done[s] + 1) <= done[s - 1])
                stages[s].run(stages + s, done[s]++);
    }
}

/* A stage on level j. */
static stage on(const hierarchy *h, const lanes *block, int64_t j, void (*run)(const stage *, int64_t)) {
    const level *L = h->levels + j;
    return (stage){
        .run = run,
        .neighbours = run == smoothing || run == residual || run == product,
        .L = L,
        .c = block + L->weights_at,
        .inverse = block + L->inverse_at,
    };
}
