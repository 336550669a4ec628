//! The `bpf(2)` commands that this project issues itself.
//!
//! aya 0.14 has no `uprobe_multi` link, and its loader always parses the whole kernel BTF (40 ms and
//! 20 MB) for relocations that our object does not have. So aya-obj parses and relocates, aya's maps
//! hold the data, and the few commands between are here: load a program, attach it to function
//! entries or returns by one link, to a perf event, or to a raw tracepoint.

use aya_obj::generated::{
    bpf_attach_type::BPF_PERF_EVENT, bpf_attr, bpf_cmd, bpf_map_type::BPF_MAP_TYPE_ARRAY,
};
use std::{
    ffi::CStr,
    io, mem,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

/// `BPF_TRACE_UPROBE_MULTI` of `enum bpf_attach_type` (include/uapi/linux/bpf.h, Linux 6.6).
pub const UPROBE_MULTI: u32 = 48;
/// `BPF_F_UPROBE_MULTI_RETURN` (same file).
const MULTI_RETURN: u32 = 1;
const LOG_BYTES: usize = 1 << 20;
const LOG_LINES: usize = 12;

/// What the kernel said to a refused program: errno and the end of the verifier's log.
#[derive(Debug)]
pub struct Refused {
    pub source: io::Error,
    pub log: String,
}

/// A link; closing it detaches.
#[derive(Debug)]
pub struct Link(#[expect(dead_code, reason = "held for its descriptor")] OwnedFd);

/// Where a `uprobe_multi` link applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One process (id in our PID namespace), its threads included, its children not.
    Process(u32),
    /// Every process that maps the file.
    Everyone,
}

/// Offset in the file and attach cookie.
pub type Point = (u64, u64);

/// A program to load.
pub struct Code<'a> {
    pub name: &'a str,
    pub kind: u32,
    pub expected_attach_type: u32,
    pub license: &'a CStr,
    pub instructions: &'a [aya_obj::generated::bpf_insn],
}

fn zeroed() -> bpf_attr {
    // SAFETY: all-zero is a valid bpf_attr.
    unsafe { mem::zeroed() }
}

/// Loads a program.
///
/// # Errors
/// The kernel's refusal, with the verifier's last words.
pub fn load(code: &Code<'_>) -> Result<OwnedFd, Refused> {
    let attempt = |log: &mut [u8]| {
        let mut attr = zeroed();
        // SAFETY: BPF_PROG_LOAD reads this member of the union.
        let u = unsafe { &mut attr.__bindgen_anon_3 };
        u.prog_type = code.kind;
        u.expected_attach_type = code.expected_attach_type;
        u.insns = code.instructions.as_ptr() as u64;
        u.insn_cnt = code.instructions.len() as u32;
        u.license = code.license.as_ptr() as u64;
        for (to, from) in u.prog_name.iter_mut().zip(code.name.bytes().take(15)) {
            *to = from as _;
        }
        if !log.is_empty() {
            u.log_level = 1;
            u.log_buf = log.as_mut_ptr() as u64;
            u.log_size = log.len() as u32;
        }
        bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr)
    };
    attempt(&mut []).map_err(|source| {
        let mut log = vec![0; LOG_BYTES];
        let _ = attempt(&mut log);
        let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        let text = text.to_string_lossy();
        let lines: Vec<&str> = text.lines().collect();
        let log = lines[lines.len().saturating_sub(LOG_LINES)..]
            .iter()
            .fold(String::new(), |all, line| all + "\n  " + line);
        Refused { source, log }
    })
}

/// One link for all points of a file: all are attached, or none.
///
/// # Errors
/// The kernel's refusal; EINVAL also when it knows no such link (before 6.6).
pub fn uprobe_multi(
    program: BorrowedFd<'_>,
    path: &CStr,
    points: &[Point],
    scope: Scope,
    at_return: bool,
) -> io::Result<Link> {
    let (offsets, cookies): (Vec<u64>, Vec<u64>) = points.iter().copied().unzip();
    let mut attr = zeroed();
    // SAFETY: BPF_LINK_CREATE reads this member of the union.
    let u = unsafe { &mut attr.link_create };
    u.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    u.attach_type = UPROBE_MULTI;
    // SAFETY: the attach type above selects this member.
    let m = unsafe { &mut u.__bindgen_anon_3.uprobe_multi };
    m.path = path.as_ptr() as u64;
    m.offsets = offsets.as_ptr() as u64;
    m.cookies = cookies.as_ptr() as u64;
    m.cnt = points.len() as u32;
    m.flags = if at_return { MULTI_RETURN } else { 0 };
    m.pid = match scope {
        Scope::Process(pid) => pid,
        Scope::Everyone => 0,
    };
    bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr).map(Link)
}

/// Whether this kernel knows `uprobe_multi` links. A path that cannot exist is refused with ENOENT by
/// one that does (it looks the path up), and with EINVAL by one that does not.
///
/// # Errors
/// Any other refusal.
pub fn has_uprobe_multi(program: BorrowedFd<'_>) -> io::Result<bool> {
    let nowhere = c"/proc/self/perf-gate-no-such-file";
    match uprobe_multi(program, nowhere, &[(0, 0)], Scope::Everyone, false) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(e) => Err(e),
        Ok(_) => Ok(true),
    }
}

/// Runs a program at each hit of a perf event.
///
/// # Errors
/// The kernel's refusal.
pub fn perf_event(program: BorrowedFd<'_>, event: RawFd, cookie: u64) -> io::Result<Link> {
    let mut attr = zeroed();
    // SAFETY: BPF_LINK_CREATE reads this member of the union.
    let u = unsafe { &mut attr.link_create };
    u.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    u.__bindgen_anon_2.target_fd = event as u32;
    u.attach_type = BPF_PERF_EVENT as u32;
    u.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr).map(Link)
}

/// Runs a program at each hit of a raw tracepoint.
///
/// # Errors
/// The kernel's refusal.
pub fn raw_tracepoint(program: BorrowedFd<'_>, name: &CStr) -> io::Result<Link> {
    let mut attr = zeroed();
    // SAFETY: BPF_RAW_TRACEPOINT_OPEN reads this member of the union.
    let u = unsafe { &mut attr.raw_tracepoint };
    u.name = name.as_ptr() as u64;
    u.prog_fd = program.as_raw_fd() as u32;
    bpf(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr).map(Link)
}

/// Creates an array of one word.
///
/// # Errors
/// The kernel's refusal.
pub fn array_of_one() -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: BPF_MAP_CREATE reads this member of the union.
    let u = unsafe { &mut attr.__bindgen_anon_1 };
    u.map_type = BPF_MAP_TYPE_ARRAY as u32;
    u.key_size = 4;
    u.value_size = 8;
    u.max_entries = 1;
    bpf(bpf_cmd::BPF_MAP_CREATE, &mut attr)
}

/// Writes the one element of a global-data map.
///
/// # Errors
/// The kernel's refusal.
pub fn write_globals(map: impl AsFd, data: &[u8]) -> io::Result<()> {
    let key = 0u32;
    let mut attr = zeroed();
    // SAFETY: BPF_MAP_UPDATE_ELEM reads this member of the union.
    let u = unsafe { &mut attr.__bindgen_anon_2 };
    u.map_fd = map.as_fd().as_raw_fd() as u32;
    u.key = (&raw const key) as u64;
    u.__bindgen_anon_1.value = data.as_ptr() as u64;
    raw(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr).map(|_| ())
}

fn raw(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<RawFd> {
    // SAFETY: every pointer that the callers put into `attr` outlives the call.
    let r = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            cmd as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if r < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(r as RawFd)
    }
}

fn bpf(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the commands that come here return a new close-on-exec descriptor that nobody else owns.
    raw(cmd, attr).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
