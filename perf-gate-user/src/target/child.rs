//! The child between fork and exec.
//!
//! fork copies one thread of a process that may have many; locks that the others held stay locked
//! for ever. So everything here is a system call on memory prepared before the fork: no allocation,
//! no formatting, no environment, no panic. Identity calls are made raw, because the C library's
//! versions try to carry the change to threads that no longer exist.
//!
//! Order matters. Groups go before the user id, since without root they can no longer change;
//! capabilities after it; the parent-death signal after both, because a change of credentials
//! clears it; and the look at the parent after that, because a parent that died earlier sends
//! nothing. Then the child says that it is ready, and waits for one byte. No byte, no program.

use std::{
    ffi::CString,
    os::fd::RawFd,
    path::Path,
    ptr::{null, null_mut},
};

use libc::{c_char, gid_t, pid_t, uid_t};

use super::{
    hold,
    inherit::{Inherited, set_ignored},
    search::is_absence,
};

/// How far the child came, or where it failed. Travels over the status pipe as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Stage {
    /// All is set up; waiting at the gate.
    Ready = 1,
    Groups,
    Gid,
    Uid,
    /// It could become root again.
    Regained,
    Capabilities,
    Directory,
    DeathSignal,
    Stdio,
    /// The program could not be executed.
    Exec,
}

/// One message of the child: small enough for a pipe to write and read it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub stage: Stage,
    pub errno: i32,
    /// Which candidate failed, for `Exec`.
    pub index: usize,
}

pub(super) const MESSAGE_LEN: usize = 12;

impl Message {
    const fn encode(self) -> [u8; MESSAGE_LEN] {
        let (s, e, i) = (
            (self.stage as i32).to_ne_bytes(),
            self.errno.to_ne_bytes(),
            (self.index as u32).to_ne_bytes(),
        );
        [
            s[0], s[1], s[2], s[3], e[0], e[1], e[2], e[3], i[0], i[1], i[2], i[3],
        ]
    }

    pub fn decode(bytes: [u8; MESSAGE_LEN]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let stage = i32::from_ne_bytes([a, b, c, d]);
        let all = [
            Stage::Ready,
            Stage::Groups,
            Stage::Gid,
            Stage::Uid,
            Stage::Regained,
            Stage::Capabilities,
            Stage::Directory,
            Stage::DeathSignal,
            Stage::Stdio,
            Stage::Exec,
        ];
        Some(Self {
            stage: all.into_iter().find(|s| *s as i32 == stage)?,
            errno: i32::from_ne_bytes([e, f, g, h]),
            index: u32::from_ne_bytes([i, j, k, l]) as usize,
        })
    }
}

/// User, group and supplementary groups to become.
pub(super) struct Credentials {
    pub uid: uid_t,
    pub gid: gid_t,
    pub groups: Vec<gid_t>,
}

/// A NULL-terminated array of C strings, as execve wants it.
pub(super) struct CArray {
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl CArray {
    pub fn new(strings: Vec<CString>) -> Self {
        // A CString's bytes are on the heap and stay put when the vector moves.
        let mut pointers: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
        pointers.push(null());
        Self {
            _strings: strings,
            pointers,
        }
    }
}

/// Everything that the child needs, prepared before the fork.
pub(super) struct Plan<'a> {
    pub argv: CArray,
    pub envp: CArray,
    pub candidates: Vec<CString>,
    pub cwd: Option<CString>,
    pub credentials: Option<Credentials>,
    pub inherited: &'a Inherited,
    /// Hold every program of the tree at its start, where the kernel lets us.
    pub hold: bool,
    pub fd_gaps: Vec<(u32, u32)>,
    /// What becomes 0, 1 and 2; `None` keeps what there is.
    pub stdio: Option<[RawFd; 3]>,
    pub parent: pid_t,
}

/// The child's ends of gate and status, and the parent's end of the gate, which it must close.
pub(super) struct Ends {
    pub gate: RawFd,
    pub parents_gate: RawFd,
    pub status: RawFd,
}

/// Runs the child to its exec.
///
/// # Safety
/// Only in a freshly forked child with all signals blocked.
pub(super) unsafe fn run(plan: &Plan<'_>, ends: &Ends) -> ! {
    // SAFETY: the caller's promise; every pointer passed below is into `plan` or this stack frame.
    unsafe {
        // While our copy is open, the parent's death would not be seen as end of file.
        libc::close(ends.parents_gate);
        restore(plan);
        for (target, from) in (0..).zip(plan.stdio.iter().flatten()) {
            if libc::dup2(*from, target) < 0 {
                fail(ends.status, Stage::Stdio);
            }
        }
        // The right to do this goes with the identity.
        let listener = if plan.hold { hold::install() } else { -1 };
        if let Some(credentials) = &plan.credentials {
            become_user(credentials, ends.status);
        }
        if let Some(cwd) = &plan.cwd
            && libc::chdir(cwd.as_ptr()) != 0
        {
            fail(ends.status, Stage::Directory);
        }
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) != 0 {
            fail(ends.status, Stage::DeathSignal);
        }
        if libc::getppid() != plan.parent {
            libc::_exit(1);
        }
        say_ready(ends.status, listener);
        wait_at_gate(ends.gate);
        exec(plan, ends.status)
    }
}

/// Gives back what perf-gate inherited; the mask last, so that nothing arrives half-way.
unsafe fn restore(plan: &Plan<'_>) {
    for (signal, ignored) in (0..).zip(&plan.inherited.ignored).skip(1) {
        set_ignored(signal, *ignored);
    }
    // SAFETY: see `run`.
    unsafe {
        for (resource, limit) in &plan.inherited.limits {
            libc::prlimit64(0, *resource, limit, null_mut());
        }
        // A second fence: our own descriptors are close-on-exec already.
        for (first, last) in &plan.fd_gaps {
            libc::syscall(
                libc::SYS_close_range,
                *first,
                *last,
                libc::CLOSE_RANGE_CLOEXEC,
            );
        }
        libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const plan.inherited.mask,
            null_mut(),
        );
    }
}

/// For good, and checked: an identity that could be taken back is not dropped.
unsafe fn become_user(to: &Credentials, status: RawFd) {
    const KEEP: uid_t = uid_t::MAX;
    // SAFETY: see `run`. The header and data are laid out as capset's version 3 wants them: two
    // sets of (effective, permitted, inheritable).
    unsafe {
        let (count, list) = (to.groups.len(), to.groups.as_ptr());
        if libc::syscall(libc::SYS_setgroups, count, list) != 0 {
            fail(status, Stage::Groups);
        }
        if libc::syscall(libc::SYS_setresgid, to.gid, to.gid, to.gid) != 0 {
            fail(status, Stage::Gid);
        }
        if libc::syscall(libc::SYS_setresuid, to.uid, to.uid, to.uid) != 0 {
            fail(status, Stage::Uid);
        }
        // Leaving uid 0 clears the effective, permitted and ambient sets unless a securebit says
        // otherwise, and never the inheritable one; emptying all is allowed to everybody.
        let header: [u32; 2] = [0x2008_0522, 0];
        let mut data = [0u32; 6];
        if libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) != 0
            || libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) != 0
            || data != [0; 6]
        {
            fail(status, Stage::Capabilities);
        }
        let (mut ru, mut eu, mut su) = (0, 0, 0);
        let (mut rg, mut eg, mut sg) = (0, 0, 0);
        let same = libc::getresuid(&raw mut ru, &raw mut eu, &raw mut su) == 0
            && libc::getresgid(&raw mut rg, &raw mut eg, &raw mut sg) == 0
            && (ru, eu, su) == (to.uid, to.uid, to.uid)
            && (rg, eg, sg) == (to.gid, to.gid, to.gid);
        if !same
            || libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0
            || libc::syscall(libc::SYS_setresuid, KEEP, 0, KEEP) == 0
            || (to.gid != 0 && libc::syscall(libc::SYS_setresgid, 0, 0, 0) == 0)
        {
            fail(status, Stage::Regained);
        }
    }
}

/// Returns on the byte; ends the process when the parent closes the gate or dies.
unsafe fn wait_at_gate(gate: RawFd) {
    // SAFETY: see `run`; errno is this thread's own.
    unsafe {
        let mut byte = 0u8;
        loop {
            match libc::read(gate, (&raw mut byte).cast(), 1) {
                1 => return,
                -1 if *libc::__errno_location() == libc::EINTR => {}
                _ => libc::_exit(1),
            }
        }
    }
}

unsafe fn exec(plan: &Plan<'_>, status: RawFd) -> ! {
    // SAFETY: see `run`; both arrays end in NULL.
    unsafe {
        let (mut errno, mut index, mut denied) = (libc::ENOENT, 0, None);
        for (i, path) in plan.candidates.iter().enumerate() {
            libc::execve(
                path.as_ptr(),
                plan.argv.pointers.as_ptr(),
                plan.envp.pointers.as_ptr(),
            );
            (errno, index) = (*libc::__errno_location(), i);
            if errno == libc::EACCES {
                denied = denied.or(Some(i));
            } else if !is_absence(errno) {
                say(status, Stage::Exec, errno, index);
                libc::_exit(126);
            }
        }
        if let Some(i) = denied {
            (errno, index) = (libc::EACCES, i);
        }
        say(status, Stage::Exec, errno, index);
        libc::_exit(127)
    }
}

unsafe fn say(status: RawFd, stage: Stage, errno: i32, index: usize) {
    let message = Message {
        stage,
        errno,
        index,
    }
    .encode();
    // SAFETY: see `run`. Nobody is left to tell should this fail; the parent then sees no message.
    unsafe { libc::write(status, message.as_ptr().cast(), MESSAGE_LEN) };
}

/// Says that all is set up, and hands over the listener if there is one.
unsafe fn say_ready(status: RawFd, listener: RawFd) {
    if listener < 0 {
        // SAFETY: see `run`.
        return unsafe { say(status, Stage::Ready, 0, 0) };
    }
    let mut bytes = Message {
        stage: Stage::Ready,
        errno: 0,
        index: 0,
    }
    .encode();
    // SAFETY: see `run`. The control buffer is larger than one descriptor needs, and aligned.
    unsafe {
        let mut control = [0u64; 4];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: MESSAGE_LEN,
        };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        if !head.is_null() {
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(head)
                .cast::<RawFd>()
                .write_unaligned(listener);
        }
        libc::sendmsg(status, &raw const message, libc::MSG_NOSIGNAL);
        libc::close(listener);
    }
}

unsafe fn fail(status: RawFd, stage: Stage) -> ! {
    // SAFETY: see `run`; errno is this thread's own.
    unsafe {
        say(status, stage, *libc::__errno_location(), 0);
        libc::_exit(126)
    }
}

/// A path as execve wants it; `None` when it holds a NUL.
pub(super) fn c_path(path: &Path) -> Option<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_pipe() {
        let message = Message {
            stage: Stage::Exec,
            errno: libc::EACCES,
            index: 3,
        };
        assert_eq!(Message::decode(message.encode()), Some(message));
        assert_eq!(Message::decode([0; MESSAGE_LEN]), None);
        assert_eq!(Message::decode([0xff; MESSAGE_LEN]), None);
    }
}
