/* Serves MLX's cblas_sgemm: few-row products here, everything else by the BLAS it was given.
 *
 * A decode step multiplies one to a handful of rows by a weight matrix that is read once from
 * memory. A general sgemm first repacks that matrix, which costs more than the product. The
 * kernels below read it in place, once for all rows. Every element is one chain of sums over K in
 * a fixed order, so a row's result depends neither on how many rows stand beside it nor on the
 * number of threads.
 *
 * Large products are cut into chunks that threads claim from a counter, the library's too, each of
 * whose calls then uses one thread. A worker that the system does not schedule delays nobody: the
 * caller takes the chunks itself. (The library's own threads wait for one another, spinning.)
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

enum { ROW_MAJOR = 101, COL_MAJOR = 102, PLAIN = 111, TRANSPOSED = 112 };

/* Past this many rows a packed sgemm wins (docs/adr/0006-fast-blas.md has the table). */
#define FEW_ROWS 16
/* Short sums (attention scores) and small matrices go through the library's small-product path,
 * which no packing slows down, until they are long enough for it to pack again. */
#define LEAST_K 256
#define LEAST_WEIGHTS 32768L
#define SHORT_K_ROWS 4
#define SHORT_K_WEIGHTS 262144L
/* Multiply-adds below which waking a worker costs more than it saves. */
#define SERIAL_MACS 65536L
/* Multiply-adds a chunk holds at least: about 10 us of work, for the library 20. */
#define CHUNK_MACS 32768L
#define LIBRARY_CHUNK_MACS 1048576L
/* Chunks per thread: enough to even out threads of different speed. */
#define KERNEL_SHARES 8
#define LIBRARY_SHARES 4
/* How far before use weights are asked for: 64 KiB, about 2 us of one core's bandwidth. */
#define AHEAD_FLOATS 16384
#define MAX_WORKERS 63
/* Polls of an idle worker before it sleeps: about 50 us, the gap between two products of a step. */
#define IDLE_POLLS 2000

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

/* Row-major c[rows, n] = alpha op(a) op(b) + beta c. The kernel wants a[rows, k] and b[n, k]'. */
typedef struct {
    int trans_a, trans_b;
    int rows, n, k;
    float alpha, beta;
    const float *a, *b;
    ptrdiff_t lda, ldb;
    float *c;
    ptrdiff_t c_row, c_col; /* strides of the output */
} product;

typedef void (*kernel_fn)(const product *p, int from, int to);

/* ---- kernels: written once, compiled per instruction set ---- */

#define INLINE static inline __attribute__((always_inline))

INLINE void put(const product *p, int row, int col, float sum) {
    float *c = p->c + row * p->c_row + col * p->c_col;
    *c = p->beta == 0.0f ? p->alpha * sum : p->alpha * sum + p->beta * *c;
}

typedef float quad __attribute__((vector_size(16)));

#define KERNELS(NAME, WIDTH, WIDE, TARGET)                                                        \
    typedef float NAME##_v __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));        \
    INLINE float NAME##_total(NAME##_v sum) {                                                     \
        union { NAME##_v all; quad part[WIDTH / 4]; } lanes = {sum};                              \
        quad total = lanes.part[0];                                                               \
        for (int i = 1; i < WIDTH / 4; i++) total += lanes.part[i];                               \
        return (total[0] + total[2]) + (total[1] + total[3]);                                     \
    }                                                                                             \
    INLINE void NAME##_dot_block(const product *p, const int rows, const int cols, int row,       \
                                 int col) {                                                       \
        NAME##_v sum[4][4] = {{{0}}};                                                             \
        const float *a = p->a + row * p->lda, *b = p->b + col * p->ldb;                           \
        /* A block of short rows is done before memory answers: ask for a later one. */           \
        const float *ahead = b + cols * (1 + AHEAD_FLOATS / (cols * p->ldb)) * p->ldb;            \
        int i = 0;                                                                                \
        for (; i + WIDTH <= p->k; i += WIDTH)                                                     \
            for (int c = 0; c < cols; c++) {                                                      \
                NAME##_v w = *(const NAME##_v *)(b + c * p->ldb + i);                             \
                if (row == 0) __builtin_prefetch(ahead + c * p->ldb + i, 0, 2);                   \
                for (int r = 0; r < rows; r++)                                                    \
                    sum[r][c] += w * *(const NAME##_v *)(a + r * p->lda + i);                     \
            }                                                                                     \
        for (int r = 0; r < rows; r++)                                                            \
            for (int c = 0; c < cols; c++) {                                                      \
                float total = NAME##_total(sum[r][c]);                                            \
                for (int t = i; t < p->k; t++)                                                    \
                    total += b[c * p->ldb + t] * a[r * p->lda + t];                               \
                put(p, row + r, col + c, total);                                                  \
            }                                                                                     \
    }                                                                                             \
    INLINE void NAME##_dot_rows(const product *p, const int rows, const int cols, int row,        \
                                int from, int to) {                                               \
        int col = from;                                                                           \
        for (; col + cols <= to; col += cols) NAME##_dot_block(p, rows, cols, row, col);          \
        for (; col < to; col++) NAME##_dot_block(p, rows, 1, row, col);                           \
    }                                                                                             \
    TARGET static void NAME##_dots(const product *p, int from, int to) {                          \
        for (int start = from; start < to; start += 4) {                                          \
            int stop = start + 4 < to ? start + 4 : to;                                           \
            for (int row = 0; row < p->rows; row += 4) {                                          \
                switch (p->rows - row) {                                                          \
                    case 1: NAME##_dot_rows(p, 1, 4, row, start, stop); break;                    \
                    case 2: NAME##_dot_rows(p, 2, 4, row, start, stop); break;                    \
                    case 3: NAME##_dot_rows(p, 3, WIDE, row, start, stop); break;                 \
                    default: NAME##_dot_rows(p, 4, WIDE, row, start, stop);                       \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
    }

KERNELS(base, 4, 2, )
#if defined(__x86_64__)
KERNELS(avx2, 8, 2, __attribute__((target("avx2,fma"))))
KERNELS(avx512, 16, 4, __attribute__((target("avx512f"))))
#endif

static kernel_fn dots = base_dots;

static void choose_kernel(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) dots = avx512_dots;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) dots = avx2_dots;
#endif
}

/* ---- the library, by columns or by rows of the output ---- */

static sgemm_fn library_sgemm;

static void library_columns(const product *p, int from, int to) {
    const float *b = p->b + (p->trans_b == PLAIN ? from : from * p->ldb);
    library_sgemm(ROW_MAJOR, p->trans_a, p->trans_b, p->rows, to - from, p->k, p->alpha, p->a,
                  (int)p->lda, b, (int)p->ldb, p->beta, p->c + from, (int)p->c_row);
}

static void library_rows(const product *p, int from, int to) {
    const float *a = p->a + (p->trans_a == PLAIN ? from * p->lda : from);
    library_sgemm(ROW_MAJOR, p->trans_a, p->trans_b, to - from, p->n, p->k, p->alpha, a,
                  (int)p->lda, p->b, (int)p->ldb, p->beta, p->c + from * p->c_row, (int)p->c_row);
}

/* ---- the pool: one job at a time, chunks claimed from a counter ---- */

static struct {
    pthread_mutex_t busy, lock;
    pthread_cond_t wake;
    int workers, started, sleeping;
    atomic_uint round;       /* odd while a job is open */
    atomic_int inside, next; /* workers in the job; first chunk nobody claimed */
    int chunks, chunk_size, total;
    kernel_fn kernel;
    product job;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void take_chunks(void) {
    int chunk;
    while ((chunk = atomic_fetch_add(&pool.next, 1)) < pool.chunks) {
        int from = chunk * pool.chunk_size, to = from + pool.chunk_size;
        pool.kernel(&pool.job, from, to < pool.total ? to : pool.total);
    }
}

static void *work(void *unused) {
    unsigned seen = 0;
    (void)unused;
    for (;;) {
        int polls = 0;
        unsigned round;
        while (round = atomic_load(&pool.round), !(round & 1) || round == seen) {
            if (++polls < IDLE_POLLS) {
                pause_cpu();
                continue;
            }
            pthread_mutex_lock(&pool.lock);
            pool.sleeping++;
            while (round = atomic_load(&pool.round), !(round & 1) || round == seen)
                pthread_cond_wait(&pool.wake, &pool.lock);
            pool.sleeping--;
            pthread_mutex_unlock(&pool.lock);
            break;
        }
        /* Announce first, look again after: the caller closes the round before it waits for zero. */
        atomic_fetch_add(&pool.inside, 1);
        if (atomic_load(&pool.round) == round) take_chunks();
        atomic_fetch_sub(&pool.inside, 1);
        seen = round;
    }
    return NULL;
}

static void start_workers(void) {
    while (pool.started < pool.workers) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0) {
            pool.workers = pool.started;
            return;
        }
        pthread_detach(thread);
        pool.started++;
    }
}

/* Call kernel(p, from, to) for all of 0..total, in at most that many chunks. */
static void run(kernel_fn kernel, const product *p, int total, long chunks, int shares) {
    if (pool.workers == 0 || chunks < 2 || pthread_mutex_trylock(&pool.busy) != 0) {
        kernel(p, 0, total);
        return;
    }
    start_workers();
    long most = (long)shares * (pool.started + 1);
    if (chunks > most) chunks = most;
    /* Whole cache lines of the output, so that no two threads write one. */
    int size = (int)((total + chunks - 1) / chunks);
    pool.chunk_size = (size + 63) / 64 * 64;
    pool.chunks = (total + pool.chunk_size - 1) / pool.chunk_size;
    pool.total = total;
    pool.kernel = kernel;
    pool.job = *p;
    atomic_store(&pool.next, 0);
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.round, 1);
    if (pool.sleeping) pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    take_chunks();
    atomic_fetch_add(&pool.round, 1);
    for (int polls = 0; atomic_load(&pool.inside) != 0; polls++) {
        if (polls < IDLE_POLLS) pause_cpu();
        else sched_yield();
    }
    pthread_mutex_unlock(&pool.busy);
}

/* A child of fork has no workers; its first large product starts its own. */
static void after_fork(void) {
    pool.busy = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.wake = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.started = pool.sleeping = 0;
    atomic_store(&pool.inside, 0);
    atomic_store(&pool.round, 0);
}

/* ---- what is exported ---- */

static atomic_long served;

/* Name the BLAS behind this one, which must use one thread, and the threads of a product. Call
 * before the first product. */
void mlxcel_blas_init(sgemm_fn sgemm, int threads) {
    if (library_sgemm == NULL) {
        choose_kernel();
        pthread_atfork(NULL, NULL, after_fork);
    }
    library_sgemm = sgemm;
    if (threads < 1) threads = 1;
    pool.workers = threads - 1 < MAX_WORKERS ? threads - 1 : MAX_WORKERS;
}

/* Products served so far: tells whether MLX really calls here. */
long mlxcel_blas_served(void) { return atomic_load(&served); }

/* Whether the kernel takes row-major C[rows, n] = A[rows, k] B[n, k]'. */
static int pays(int rows, int n, int k) {
    if (k < LEAST_K) return rows <= SHORT_K_ROWS && (long)n * k >= SHORT_K_WEIGHTS;
    return rows <= FEW_ROWS && (long)n * k >= LEAST_WEIGHTS;
}

static void serve(product p) {
    long macs = (long)p.rows * p.n * p.k;
    if (p.trans_a == PLAIN && p.trans_b == TRANSPOSED && p.alpha != 0.0f) {
        if (!pays(p.rows, p.n, p.k) && pays(p.n, p.rows, p.k)) {
            /* C' = B A': few columns are few rows. */
            product turned = {PLAIN,   TRANSPOSED, p.n,   p.rows, p.k, p.alpha, p.beta, p.b,
                              p.a,     p.ldb,      p.lda, p.c,    1,   p.c_row};
            p = turned;
        }
        if (pays(p.rows, p.n, p.k)) {
            run(dots, &p, p.n, macs < SERIAL_MACS ? 1 : macs / CHUNK_MACS, KERNEL_SHARES);
            return;
        }
    }
    if (p.rows > p.n)
        run(library_rows, &p, p.rows, macs / LIBRARY_CHUNK_MACS, LIBRARY_SHARES);
    else
        run(library_columns, &p, p.n, macs / LIBRARY_CHUNK_MACS, LIBRARY_SHARES);
}

/* Whether rows of a matrix as stored fit its stride; otherwise the library reports the error. */
static int fits(int trans, int rows, int columns, int stride) {
    return stride >= (trans == PLAIN ? columns : rows);
}

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    atomic_fetch_add_explicit(&served, 1, memory_order_relaxed);
    if (m > 0 && n > 0 && k > 0 && order == ROW_MAJOR && ldc >= n && fits(trans_a, m, k, lda) &&
        fits(trans_b, k, n, ldb)) {
        product p = {trans_a, trans_b, m, n, k, alpha, beta, a, b, lda, ldb, c, ldc, 1};
        serve(p);
    } else if (m > 0 && n > 0 && k > 0 && order == COL_MAJOR && ldc >= m &&
               fits(trans_a, k, m, lda) && fits(trans_b, n, k, ldb)) {
        /* The same memory, read by rows, is C' = op(B)' op(A)'. */
        product p = {trans_b, trans_a, n, m, k, alpha, beta, b, a, ldb, lda, c, ldc, 1};
        serve(p);
    } else {
        library_sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    }
}
