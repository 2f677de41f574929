/* Cycles, conjugate gradients and estimates; matrices.c and sweeps.c come before this file. */

typedef struct {
    const double *weights; /* (levels, levels, pre + post + 2) by level of start and level: steps, correction, start */
    int64_t pre, post, visits;
} plan;

typedef struct { /* vectors of one level */
    lanes *v, *other, *b, *load;
} vectors;

static void swap(lanes **one, lanes **other) {
    lanes *kept = *one;
    *one = *other;
    *other = kept;
}

/* A smoothing step for A v = b on level j. */
static stage smoothing_step(const hierarchy *h, const lanes *block, int64_t j, vectors *own, double weight, int zero) {
    stage made = on(h, block, j, zero ? smoothing_of_zero : smoothing);
    made.x = own->v;
    made.b = own->b;
    made.out = own->other;
    made.factor = constant(weight);
    swap(&own->v, &own->other);
    return made;
}

/* One cycle on level j for A v = b; `zero` says that v is zero and has no values yet. The stage `before`, if any, comes
   first, and `after`, if any, comes last and reads v as x. */
static void cycle(const hierarchy *h, const lanes *block, const plan *p, vectors *at, int64_t j, int64_t top, int zero,
                  const stage *before, const stage *after) {
    vectors *own = at + j, *below = at + j - 1;
    stage stages[3 + (p->pre > p->post ? p->pre : p->post)];
    int64_t count = 0;
    if (before) stages[count++] = *before;
    if (j == 0) {
        sweep(stages, count);
        solve_coarsest(h, block, own->b, own->v);
        count = 0;
    } else {
        const double *weights = p->weights + (top * h->count + j) * (p->pre + p->post + 2);
        for (int64_t step = 0; step < p->pre; step++, zero = 0)
            stages[count++] = smoothing_step(h, block, j, own, weights[step], zero);
        if (!zero) {
            stages[count] = on(h, block, j, residual);
            stages[count].x = own->v;
            stages[count].b = own->b;
            stages[count++].out = own->other;
        }
        stages[count] = on(h, block, j, restriction);
        stages[count].x = zero ? own->b : own->other;
        stages[count++].out = below->b;
        sweep(stages, count);
        for (int64_t visit = 0; visit < (j == 1 ? 1 : p->visits); visit++)
            cycle(h, block, p, at, j - 1, top, visit == 0, 0, 0);
        stages[0] = on(h, block, j, zero ? prolongation : correction);
        stages[0].x = below->v;
        stages[0].out = own->v;
        stages[0].factor = constant(weights[p->pre + p->post]);
        count = 1;
        for (int64_t step = 0; step < p->post; step++)
            stages[count++] = smoothing_step(h, block, j, own, weights[p->pre + step], 0);
    }
    if (after) {
        stages[count] = *after;
        stages[count++].x = own->v;
    }
    sweep(stages, count);
}

/* Full multigrid for the loads of the finest level, which the stage `before` makes; the solution is in at[count - 1].v.
   The stage `after`, if any, comes last and reads it as x. */
static void full(const hierarchy *h, const lanes *block, const plan *p, vectors *at, const stage *before,
                 const stage *after) {
    const int64_t last = h->count - 1;
    for (int64_t j = last; j > 0; j--) {
        stage stages[2] = {*before, on(h, block, j, restriction)};
        stages[1].x = at[j].load;
        stages[1].out = at[j - 1].load;
        sweep(stages + (j < last), 1 + (j == last));
    }
    if (last == 0) sweep(before, 1);
    for (int64_t j = 0; j <= last; j++) {
        stage start = on(h, block, j, prolongation);
        if (j > 0) {
            start.x = at[j - 1].v;
            start.out = at[j].v;
            start.factor = constant(p->weights[(j * h->count + j + 1) * (p->pre + p->post + 2) - 1]);
        }
        lanes *b = at[j].b;
        at[j].b = at[j].load; /* only this cycle's first level has the load itself as its right-hand side */
        cycle(h, block, p, at, j, j, 0, j > 0 ? &start : 0, j == last ? after : 0);
        at[j].b = b;
    }
}

typedef struct { /* vectors of conjugate gradients on the finest level */
    lanes *x, *r, *direction, *product;
} iterates;

static lanes quotient(lanes x, lanes z) { /* x / z where both are positive and z is finite, and 0 elsewhere */
    for (int l = 0; l < LANES; l++) x[l] = x[l] > 0 && z[l] > 0 && __builtin_isfinite(z[l]) ? x[l] / z[l] : 0;
    return x;
}

/* Steps of conjugate gradients for A x = b, preconditioned by a cycle. What the last one adds to x is still to come: the
   stage that it returns. */
static stage conjugate_directions(const hierarchy *h, const lanes *block, const plan *p, vectors *at, iterates *i,
                                  int64_t steps) {
    const int64_t last = h->count - 1;
    lanes before = {0};
    stage ahead = on(h, block, last, addition), back = ahead;
    for (int64_t step = 0; step < steps; step++) {
        sum square = {0}, curvature = {0};
        stage measured = on(h, block, last, dot);
        measured.b = i->r;
        measured.sum = &square;
        lanes *b = at[last].b;
        at[last].b = i->r;
        cycle(h, block, p, at, last, last, 1, step ? &back : 0, &measured);
        at[last].b = b;
        stage stages[3] = {ahead, on(h, block, last, direction), on(h, block, last, product)};
        if (step == 0) swap(&i->direction, &at[last].v);
        stages[1].b = at[last].v;
        stages[1].out = i->direction;
        stages[1].factor = quotient(square.total, before);
        stages[2].x = i->direction;
        stages[2].out = i->product;
        stages[2].sum = &curvature;
        sweep(step ? stages : stages + 2, step ? 3 : 1);
        const lanes size = quotient(square.total, curvature.total);
        ahead.x = i->direction;
        ahead.out = i->x;
        ahead.factor = size;
        back.x = i->product;
        back.out = i->r;
        back.factor = -size;
        before = square.total;
    }
    return ahead;
}

/* The square of the estimated error of v: the sum of r' D^-1 r over its residuals restricted to all levels. */
static lanes estimated(const hierarchy *h, const lanes *block, vectors *at, const lanes *v, const lanes *b) {
    const int64_t last = h->count - 1;
    sum found = {0};
    stage start = on(h, block, last, residual);
    start.x = v;
    start.b = b;
    start.out = at[last].b;
    if (last == 0) sweep(&start, 1);
    for (int64_t j = last; j > 0; j--) {
        stage stages[3] = {start, on(h, block, j, scaled_square), on(h, block, j, restriction)};
        stages[1].b = stages[2].x = at[j].b;
        stages[1].sum = &found;
        stages[2].out = at[j - 1].b;
        sweep(stages + (j < last), 2 + (j == last));
    }
    solve_coarsest(h, block, at[0].b, at[0].other);
    stage end = on(h, block, 0, dot);
    end.x = at[0].other;
    end.b = at[0].b;
    end.sum = &found;
    sweep(&end, 1);
    return found.total;
}

/* ---- what a caller asks for */

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

/* The room that `answer` and the functions below need, in lanes. */
int64_t room(const hierarchy *h) {
    int64_t needed = 4 * (h->levels[h->count - 1].unknowns + 1);
    for (int64_t j = 0; j < h->count; j++) needed += 4 * (h->levels[j].unknowns + 1);
    return needed;
}

static stage reading(const hierarchy *h, const lanes *block, const real *from, const place *place, lanes *to) {
    stage made = on(h, block, h->count - 1, input);
    made.from = from;
    made.place = place;
    made.out = to;
    return made;
}

static stage writing(const hierarchy *h, const lanes *block, const lanes *from, const place *place, real *to) {
    stage made = on(h, block, h->count - 1, output);
    made.x = from;
    made.place = place;
    made.to = to;
    return made;
}

/* v (N, B) for b (N, B) in blocks [from, to): full multigrid if `start` is 0, one cycle from zero if it is 1, what v
   holds already if it is 2; then steps of conjugate gradients. `squares`, where wanted, gets the estimated square of the
   error of v and then the product of v and b, (2, B). `packed` begins with block `from`. */
void answer(const hierarchy *h, const lanes *packed, const plan *p, const real *b, real *v, real *squares,
            int64_t samples, int64_t from, int64_t to, int64_t start, int64_t steps, lanes *space) {
    const int64_t last = h->count - 1, n = h->levels[last].unknowns;
    vectors at[h->count];
    lanes *more = reserve(h, space, at);
    iterates i = {more, more + n + 1, more + 2 * (n + 1), more + 3 * (n + 1)};
    for (int k = 0; k < 4; k++) memset(more + k * (n + 1) + n, 0, sizeof(lanes));
    for (int64_t number = from; number < to; number++) {
        const lanes *block = packed + (number - from) * h->block;
        const place own = {h->order, samples, number}, plain = {0, samples, number};
        stage loading = reading(h, block, b, &own, at[last].load);
        stage stages[3] = {loading, reading(h, block, v, &own, at[last].v), on(h, block, last, residual)};
        stages[2].b = at[last].load;
        stages[2].out = i.r;
        const stage *after = steps ? stages + 2 : 0;
        if (start == 0) full(h, block, p, at, &loading, after);
        if (start == 1) {
            lanes *kept = at[last].b;
            at[last].b = at[last].load;
            cycle(h, block, p, at, last, last, 1, &loading, after);
            at[last].b = kept;
        }
        if (start == 2) {
            stages[2].x = at[last].v;
            sweep(stages, steps ? 3 : 2);
        }
        stage ends[2];
        if (steps) {
            swap(&i.x, &at[last].v);
            ends[0] = conjugate_directions(h, block, p, at, &i, steps);
        }
        const lanes *found = steps ? i.x : at[last].v;
        ends[1] = writing(h, block, found, &own, v);
        sweep(ends + !steps, 1 + !!steps);
        if (squares) {
            sum energy = {0};
            stage measured = on(h, block, last, dot);
            measured.x = found;
            measured.b = at[last].load;
            measured.sum = &energy;
            sweep(&measured, 1);
            const lanes pair[] = {estimated(h, block, at, found, at[last].load), energy.total};
            scatter(pair, &plain, 0, 2, squares);
        }
    }
}

/* out (N, B) = A v. */
void multiply_by_A(const hierarchy *h, const lanes *packed, const real *v, real *out, int64_t samples, int64_t from,
                   int64_t to, lanes *space) {
    const int64_t last = h->count - 1, n = h->levels[last].unknowns;
    lanes *x = space, *made = x + n + 1;
    memset(x + n, 0, sizeof(lanes));
    for (int64_t number = from; number < to; number++) {
        const lanes *block = packed + (number - from) * h->block;
        const place own = {h->order, samples, number};
        sum energy = {0};
        const stage load = reading(h, block, v, &own, x), store = writing(h, block, made, &own, out);
        stage stages[3] = {load, on(h, block, last, product), store};
        stages[1].x = x;
        stages[1].out = made;
        stages[1].sum = &energy;
        sweep(stages, 3);
    }
}

/* out (B): the squares of the estimated errors of v. */
void estimate(const hierarchy *h, const lanes *packed, const real *v, const real *b, real *out, int64_t samples,
              int64_t from, int64_t to, lanes *space) {
    const int64_t last = h->count - 1;
    vectors at[h->count];
    reserve(h, space, at);
    for (int64_t number = from; number < to; number++) {
        const lanes *block = packed + (number - from) * h->block;
        const place own = {h->order, samples, number}, plain = {0, samples, number};
        const stage stages[] = {
            reading(h, block, v, &own, at[last].v),
            reading(h, block, b, &own, at[last].load),
        };
        sweep(stages, 2);
        const lanes square = estimated(h, block, at, at[last].v, at[last].load);
        scatter(&square, &plain, 0, 1, out);
    }
}
