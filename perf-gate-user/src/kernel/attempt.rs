//! Small real attempts at what observing needs: each makes the thing and lets go of it at once.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_map_type, bpf_prog_type};
use perf_event::{Builder, events};

/// `BPF_TRACE_UPROBE_MULTI` of `enum bpf_attach_type`.
const UPROBE_MULTI: u32 = 48;
/// `r0 = 0; exit`, as the kernel reads instructions.
const NOTHING: [u64; 2] = [0xb7, 0x95];

/// Creates a map of one entry: needs CAP_BPF.
pub fn map() -> io::Result<()> {
    let mut attr = zeroed();
    // SAFETY: BPF_MAP_CREATE reads this member of the union.
    let u = unsafe { &mut attr.__bindgen_anon_1 };
    u.map_type = bpf_map_type::BPF_MAP_TYPE_ARRAY as u32;
    u.key_size = 4;
    u.value_size = 8;
    u.max_entries = 1;
    bpf(bpf_cmd::BPF_MAP_CREATE, &mut attr).map(drop)
}

/// Loads a tracing program that does nothing: needs CAP_BPF and CAP_PERFMON.
pub fn program() -> io::Result<()> {
    load(0).map(drop)
}

/// Whether probes can be attached many at a time (Linux 6.6). A path that cannot exist is refused
/// with ENOENT by a kernel that can, which has to look it up, and with EINVAL by one that cannot.
pub fn multi() -> io::Result<bool> {
    // Before 6.6 the program is accepted too: the attach type of such programs was not looked at.
    let program = load(UPROBE_MULTI)?;
    let mut attr = zeroed();
    let (offsets, path) = ([0u64], c"/proc/self/perf-gate-no-such-file");
    // SAFETY: BPF_LINK_CREATE reads this member of the union.
    let u = unsafe { &mut attr.link_create };
    u.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    u.attach_type = UPROBE_MULTI;
    // SAFETY: the attach type above selects this member.
    let m = unsafe { &mut u.__bindgen_anon_3.uprobe_multi };
    m.path = path.as_ptr() as u64;
    m.offsets = offsets.as_ptr() as u64;
    m.cnt = 1;
    match bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(e) => Err(e),
        Ok(_) => Ok(true),
    }
}

pub fn software_counter() -> io::Result<()> {
    open(&Builder::new(events::Software::PAGE_FAULTS))
}

pub fn hardware_counter() -> io::Result<()> {
    open(&Builder::new(events::Hardware::INSTRUCTIONS))
}

/// Opens a hardware breakpoint on a word of our own that nobody writes.
pub fn breakpoint() -> io::Result<()> {
    static WORD: u64 = 0;
    let address = std::ptr::from_ref(&WORD) as u64;
    open(&Builder::new(events::Breakpoint::write(address, 8)))
}

fn open(builder: &Builder) -> io::Result<()> {
    builder.build().map(drop)
}

fn load(attach_type: u32) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: BPF_PROG_LOAD reads this member of the union.
    let u = unsafe { &mut attr.__bindgen_anon_3 };
    u.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    u.insns = NOTHING.as_ptr() as u64;
    u.insn_cnt = NOTHING.len() as u32;
    u.license = c"GPL".as_ptr() as u64;
    u.expected_attach_type = attach_type;
    bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr)
}

const fn zeroed() -> bpf_attr {
    // SAFETY: the union consists of integers and unions of them, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

fn bpf(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the commands used here return a new descriptor or -1, and everything that `attr`
    // points to lives in the caller.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            cmd as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
