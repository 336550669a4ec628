//! Holding every new program of the tree at its start, unseen by its parent.
//!
//! A program must not run before its probes sit. Stopping it with a signal would do, but a stop is an
//! event for its parent: shells with job control, `su`, `sudo` and `script` see a job that was
//! suspended, suspend themselves in turn, and hang. So the child gets a seccomp filter that lets
//! everything pass but one call, which the C library's start makes once in each new program, before
//! any constructor: the one that sets the thread pointer. There the kernel asks us, and the program
//! sleeps in the call until we answer. To its parent it is simply a program that takes a moment.
//!
//! The filter stays with the tree for good, and without anybody to ask, that call would fail and the
//! program with it. So a *guard*, a small process of its own, shares the descriptor and does nothing
//! until perf-gate is gone, however it went; then it says yes to everything until no process with the
//! filter is left. It is a `clone` child without an exit signal, which no ordinary wait sees.
//!
//! One process can have only one such listener: inside another perf-gate, or a container runtime that
//! uses this feature, and without CAP_SYS_ADMIN, there is no hold and the signal has to do.

use std::{
    io,
    mem::zeroed,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr::null_mut,
};

use libc::{c_int, c_ulong, pid_t, sock_filter, sock_fprog};
use nix::{fcntl::OFlag, unistd::pipe2};

/// `AUDIT_ARCH_X86_64` (include/uapi/linux/audit.h).
const ARCH: u32 = 0xC000_003E;
/// `ARCH_SET_FS` (arch/x86/include/uapi/asm/prctl.h).
const SET_FS: u32 = 0x1002;

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Goes on when equal, else skips `skip` instructions.
const fn equal(k: u32, skip: u8) -> sock_filter {
    sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skip,
        k,
    }
}

/// A word of `struct seccomp_data`: its number at 0, its architecture at 4, the low half of its first
/// argument at 16.
const fn load(at: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

static FILTER: [sock_filter; 8] = [
    load(4),
    equal(ARCH, 5),
    load(0),
    equal(libc::SYS_arch_prctl as u32, 3),
    load(16),
    equal(SET_FS, 1),
    statement(libc::BPF_RET, libc::SECCOMP_RET_USER_NOTIF),
    statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW),
];

/// Puts the filter on the calling process. Returns the listener, or a negative number when the kernel
/// refuses.
///
/// # Safety
/// For the fresh child, whose only further program is the one it executes. Makes one system call.
pub(super) unsafe fn install() -> RawFd {
    let program = sock_fprog {
        len: FILTER.len() as u16,
        filter: FILTER.as_ptr().cast_mut(),
    };
    // A held program must die when told to, and the filter must change no speculation setting.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
        | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: `program` points at a static array of the length it gives; the kernel only reads it.
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            flags,
            &raw const program,
        ) as RawFd
    }
}

/// A program that sleeps at its start until [`Hold::release`].
#[derive(Clone, Copy, Debug)]
pub struct Held {
    id: u64,
    /// In our PID namespace; 0 when it has no number there.
    pub pid: u32,
}

/// The listening end. Dropping it leaves the tree to the guard.
#[derive(Debug)]
pub struct Hold {
    listener: OwnedFd,
    /// Closes with this process.
    life: Option<OwnedFd>,
    guard: pid_t,
}

impl Hold {
    /// Takes over the listener that the child made, and starts the guard.
    ///
    /// # Errors
    /// When no process or pipe can be made.
    pub(super) fn new(listener: OwnedFd) -> io::Result<Self> {
        let (end, life) = pipe2(OFlag::O_CLOEXEC)?;
        let (l, e) = (listener.as_raw_fd(), end.as_raw_fd());
        // SAFETY: without flags this is a fork, whose child runs nothing but `guard`.
        let guard = match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: this is the fresh child.
            0 => unsafe { guard(l, e) },
            pid => pid as pid_t,
        };
        Ok(Self {
            listener,
            life: Some(life),
            guard,
        })
    }

    /// The next program that waits, if there is one.
    pub fn next(&self) -> Option<Held> {
        let listener = self.listener.as_raw_fd();
        // SAFETY: the descriptor is ours and open.
        while unsafe { readiness(listener, 0) } & libc::POLLIN != 0 {
            // SAFETY: as above.
            if let Some(held) = unsafe { receive(listener) } {
                return Some(held);
            }
        }
        None
    }

    /// Lets it go on. One that was killed meanwhile is none to let go.
    pub fn release(&self, held: Held) {
        // SAFETY: the descriptor is ours and open.
        unsafe { answer(self.listener.as_raw_fd(), held.id) }
    }

    /// Whether no process with the filter is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        // SAFETY: the descriptor is ours and open.
        unsafe { readiness(self.listener.as_raw_fd(), 0) & libc::POLLHUP != 0 }
    }
}

/// Readable when a program waits.
impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(self.life.take());
        if self.is_over() {
            // SAFETY: a child of ours that nobody else waits for; it ends at once.
            unsafe { libc::waitpid(self.guard, null_mut(), libc::__WALL) };
        }
    }
}

/// What `poll` says of one descriptor.
unsafe fn readiness(fd: RawFd, timeout: c_int) -> i16 {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, ours.
    match unsafe { libc::poll(&raw mut poll, 1, timeout) } {
        1 => poll.revents,
        _ => 0,
    }
}

unsafe fn receive(listener: RawFd) -> Option<Held> {
    // SAFETY: the kernel wants a zeroed structure of this size, and fills it.
    unsafe {
        let mut notice: libc::seccomp_notif = zeroed();
        let got = libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice);
        (got == 0).then_some(Held {
            id: notice.id,
            pid: notice.pid,
        })
    }
}

unsafe fn answer(listener: RawFd, id: u64) {
    let response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    // SAFETY: the kernel reads a structure of this size.
    unsafe {
        libc::ioctl(
            listener,
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw const response,
        )
    };
}

/// The guard's life. System calls only: the process that it was copied from may have had threads.
unsafe fn guard(listener: RawFd, end: RawFd) -> ! {
    // SAFETY: as above; no pointer but to this stack frame.
    unsafe {
        // No terminal may signal it, and no reader of our output wait for it.
        libc::setsid();
        let mut all: libc::sigset_t = zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, null_mut());
        let (low, high) = (listener.min(end), listener.max(end));
        for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, c_int::MAX)] {
            if first <= last {
                libc::syscall(libc::SYS_close_range, first, last, 0);
            }
        }
        // Nothing is ever written: this is the end of file.
        while readiness(end, -1) == 0 {}
        loop {
            let ready = readiness(listener, -1);
            if ready & libc::POLLIN != 0 {
                if let Some(held) = receive(listener) {
                    answer(listener, held.id);
                }
            } else if ready != 0 {
                libc::_exit(0)
            }
        }
    }
}
