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
//! filter is left. It is a `clone` child without an exit signal, which no ordinary wait sees. A question
//! that was taken and not answered is not asked again, so questions are received into a page that both
//! share: whatever moment perf-gate dies in, the guard knows what is open.
//!
//! What perf-gate itself removes at its end, the guard removes when it could not.
//!
//! One process can have only one such listener: inside another perf-gate, or a container runtime that
//! uses this feature, and without CAP_SYS_ADMIN, there is no hold and the signal has to do.

use std::{
    ffi::CString,
    io,
    mem::zeroed,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr::{NonNull, null_mut},
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
    /// The latest question, shared with the guard.
    notice: Notice,
}

impl Hold {
    /// Takes over the listener that the child made, and starts the guard.
    ///
    /// # Errors
    /// When no process or pipe can be made.
    pub(super) fn new(listener: OwnedFd, leftovers: &[CString]) -> io::Result<Self> {
        let (end, life) = pipe2(OFlag::O_CLOEXEC)?;
        let notice = Notice::new()?;
        let (l, e) = (listener.as_raw_fd(), end.as_raw_fd());
        // SAFETY: without flags this is a fork, whose child runs nothing but `guard`.
        let guard = match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: this is the fresh child.
            0 => unsafe { guard(l, e, notice.0, leftovers) },
            pid => pid as pid_t,
        };
        Ok(Self {
            listener,
            life: Some(life),
            guard,
            notice,
        })
    }

    /// The next program that waits, if there is one. The one before must have been released.
    pub fn waiting(&mut self) -> Option<Held> {
        let listener = self.listener.as_raw_fd();
        // SAFETY: the descriptor is ours and open.
        while unsafe { readiness(listener, 0) } & libc::POLLIN != 0 {
            // SAFETY: as above, and the page is mapped while we are.
            if let Some(held) = unsafe { receive(listener, self.notice.0) } {
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

/// A page that this process and the guard share.
#[derive(Debug)]
struct Notice(NonNull<libc::seccomp_notif>);

impl Notice {
    fn new() -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let size = size_of::<libc::seccomp_notif>();
        // SAFETY: a new mapping at a place of the kernel's choice.
        let page = unsafe { libc::mmap(null_mut(), size, protection, flags, -1, 0) };
        match NonNull::new(page) {
            Some(page) if page.as_ptr() != libc::MAP_FAILED => Ok(Self(page.cast())),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        let size = size_of::<libc::seccomp_notif>();
        // SAFETY: our own mapping, to which no reference is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size) };
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

unsafe fn receive(listener: RawFd, notice: NonNull<libc::seccomp_notif>) -> Option<Held> {
    // SAFETY: the kernel wants a zeroed structure of this size, and fills it.
    unsafe {
        notice.write(zeroed());
        let got = libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, notice.as_ptr());
        let notice = notice.read();
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

/// Removes the files of a folder: pipes and questions that came to lie beside what is known by name.
unsafe fn empty(folder: &CString) {
    /// Byte offsets in `struct linux_dirent64` (include/linux/dirent.h).
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut entries = [0u8; 4096];
    // SAFETY: the buffer is ours and of the length given; the kernel ends names in it with a NUL.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let fd = libc::open(folder.as_ptr(), flags);
        if fd < 0 {
            return;
        }
        loop {
            let got = libc::syscall(
                libc::SYS_getdents64,
                fd,
                entries.as_mut_ptr(),
                entries.len(),
            );
            let Ok(got) = usize::try_from(got) else { break };
            let mut at = 0;
            while at + NAME < got {
                let length = usize::from(u16::from_ne_bytes([
                    entries[at + LENGTH],
                    entries[at + LENGTH + 1],
                ]));
                libc::unlinkat(fd, entries.as_ptr().add(at + NAME).cast(), 0);
                if length == 0 {
                    break;
                }
                at += length;
            }
            if got == 0 {
                break;
            }
        }
        libc::close(fd);
    }
}

/// The guard's life. System calls only: the process that it was copied from may have had threads.
unsafe fn guard(
    listener: RawFd,
    end: RawFd,
    notice: NonNull<libc::seccomp_notif>,
    leftovers: &[CString],
) -> ! {
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
        for path in leftovers {
            if libc::unlink(path.as_ptr()) != 0 {
                empty(path);
                libc::rmdir(path.as_ptr());
            }
        }
        // Answering what is answered already, or nothing, is refused and does no harm.
        answer(listener, notice.read().id);
        loop {
            let ready = readiness(listener, -1);
            if ready & libc::POLLIN != 0 {
                if let Some(held) = receive(listener, notice) {
                    answer(listener, held.id);
                }
            } else if ready != 0 {
                libc::_exit(0)
            }
        }
    }
}
