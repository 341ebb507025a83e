/* Slurm has no setting that makes its daemons listen on loopback only: they bind to every interface, or to whatever address the host's
   name has. Preloaded into them, this turns "every interface" into 127.0.0.1. It removes itself from the environment at once, so that
   no job ever sees it. Declares what it needs itself: no headers, so any C compiler will do. */

typedef int (*bind_function)(int, const void *, unsigned);
extern void *dlsym(void *, const char *);
extern int unsetenv(const char *);

struct ipv4 {
    unsigned short family, port;
    unsigned char address[4], rest[8];
};

int bind(int descriptor, const void *where, unsigned length)
{
    bind_function next = (bind_function) dlsym((void *) -1L, "bind"); /* RTLD_NEXT */
    const struct ipv4 *given = where;

    if (given->family == 2 && length >= sizeof *given && !given->address[0] && !given->address[1] && !given->address[2] && !given->address[3]) {
        struct ipv4 loopback = *given;
        loopback.address[0] = 127;
        loopback.address[3] = 1;
        return next(descriptor, &loopback, sizeof loopback);
    }
    return next(descriptor, where, length);
}

__attribute__((constructor)) static void hide(void)
{
    unsetenv("LD_PRELOAD");
}
