//! `uprobe_multi` links, which aya 0.14 can neither load nor attach.
//!
//! A perf-event uprobe takes about 110 ms to detach, each; a multi link drops twenty in the time of
//! one. aya makes the maps; here the same object is parsed once more with aya-obj, pointed at those
//! maps, and loaded and linked by the two `bpf(2)` commands aya lacks. Kernels before 6.6 load the
//! programs but refuse the link with EINVAL: [`supported`] tells before anything depends on it.

use aya_obj::{
    Object,
    generated::{bpf_attr, bpf_cmd, bpf_prog_type::BPF_PROG_TYPE_KPROBE},
};
use std::{
    collections::HashSet,
    ffi::CStr,
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

/// `BPF_TRACE_UPROBE_MULTI` of `enum bpf_attach_type` (include/uapi/linux/bpf.h, Linux 6.6).
const ATTACH_TYPE: u32 = 48;
/// `BPF_F_UPROBE_MULTI_RETURN` (same file).
const RETURN: u32 = 1;
const LOG_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum MultiError {
    #[error("the eBPF object cannot be read again for fast probes: {0}")]
    Parse(String),
    #[error("the eBPF object has no program `{0}`; it does not belong to this perf-gate")]
    NoProgram(&'static str),
    #[error("the kernel refused the program `{name}`: {source}{log}")]
    Load {
        name: &'static str,
        source: io::Error,
        log: String,
    },
    #[error("attaching {points} probes failed: {source}")]
    Link { points: usize, source: io::Error },
}

/// A loaded program. Links keep it alive on their own.
pub struct Program {
    fd: OwnedFd,
}

/// Probes of one program at many points; dropping it detaches them all.
#[derive(Debug)]
pub struct Link {
    _fd: OwnedFd,
}

/// Where a link applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One process (id in our PID namespace), its threads included, its children not.
    Process(u32),
    /// Every process that maps the file.
    Everyone,
}

/// Offset in the file and attach cookie.
pub type Point = (u64, u64);

/// Loads the named programs of `object` against maps that exist already.
///
/// # Errors
/// When the object does not parse, lacks a program, or the verifier refuses one.
pub fn load<const N: usize>(
    object: &[u8],
    maps: &[(&str, BorrowedFd<'_>)],
    names: [&'static str; N],
) -> Result<[Program; N], MultiError> {
    let parse = |e: &dyn std::fmt::Display| MultiError::Parse(e.to_string());
    let mut obj = Object::parse(object).map_err(|e| parse(&e))?;
    let text: HashSet<usize> = obj.functions.keys().map(|k| k.0).collect();
    let defined = mem::take(&mut obj.maps);
    let mut by_name: Vec<(&str, RawFd, &aya_obj::Map)> = Vec::new();
    for (name, map) in &defined {
        let fd = maps
            .iter()
            .find(|(n, _)| n == name)
            .ok_or_else(|| MultiError::Parse(format!("map {name} was not created")))?
            .1
            .as_raw_fd();
        by_name.push((name, fd, map));
    }
    obj.relocate_maps(by_name.into_iter(), &text)
        .map_err(|e| parse(&e))?;
    obj.relocate_calls(&text).map_err(|e| parse(&e))?;
    let mut out = Vec::with_capacity(N);
    for name in names {
        out.push(load_one(&obj, name)?);
    }
    out.try_into()
        .map_err(|_| MultiError::Parse("program count".into()))
}

fn load_one(obj: &Object, name: &'static str) -> Result<Program, MultiError> {
    let program = obj.programs.get(name).ok_or(MultiError::NoProgram(name))?;
    let function = obj
        .functions
        .get(&program.function_key())
        .ok_or(MultiError::NoProgram(name))?;
    let load = |log: &mut [u8]| {
        // SAFETY: all-zero is a valid bpf_attr.
        let mut attr: bpf_attr = unsafe { mem::zeroed() };
        // SAFETY: BPF_PROG_LOAD reads this member of the union.
        let u = unsafe { &mut attr.__bindgen_anon_3 };
        u.prog_type = BPF_PROG_TYPE_KPROBE as u32;
        u.expected_attach_type = ATTACH_TYPE;
        u.insns = function.instructions.as_ptr() as u64;
        u.insn_cnt = function.instructions.len() as u32;
        u.license = program.license.as_ptr() as u64;
        for (to, from) in u.prog_name.iter_mut().zip(name.bytes().take(15)) {
            *to = from as _;
        }
        if !log.is_empty() {
            u.log_level = 1;
            u.log_buf = log.as_mut_ptr() as u64;
            u.log_size = log.len() as u32;
        }
        bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr)
    };
    load(&mut []).map(|fd| Program { fd }).map_err(|source| {
        let mut log = vec![0; LOG_BYTES];
        let _ = load(&mut log);
        let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        let text = text.to_string_lossy();
        let last = text.lines().rev().take(12).collect::<Vec<_>>();
        let log = last
            .into_iter()
            .rev()
            .fold(String::new(), |all, line| all + "\n  " + line);
        MultiError::Load { name, source, log }
    })
}

impl Program {
    /// One link for all points: all are attached, or none.
    ///
    /// # Errors
    /// The kernel's refusal; EINVAL also when it knows no such link (before 6.6).
    pub fn attach(
        &self,
        path: &CStr,
        points: &[Point],
        scope: Scope,
        at_return: bool,
    ) -> Result<Link, MultiError> {
        let (offsets, cookies): (Vec<u64>, Vec<u64>) = points.iter().copied().unzip();
        // SAFETY: all-zero is a valid bpf_attr.
        let mut attr: bpf_attr = unsafe { mem::zeroed() };
        // SAFETY: BPF_LINK_CREATE reads this member of the union.
        let u = unsafe { &mut attr.link_create };
        u.__bindgen_anon_1.prog_fd = self.fd.as_raw_fd() as u32;
        u.attach_type = ATTACH_TYPE;
        // SAFETY: the attach type above selects this member.
        let m = unsafe { &mut u.__bindgen_anon_3.uprobe_multi };
        m.path = path.as_ptr() as u64;
        m.offsets = offsets.as_ptr() as u64;
        m.cookies = cookies.as_ptr() as u64;
        m.cnt = points.len() as u32;
        m.flags = if at_return { RETURN } else { 0 };
        m.pid = match scope {
            Scope::Process(pid) => pid,
            Scope::Everyone => 0,
        };
        match bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr) {
            Ok(fd) => Ok(Link { _fd: fd }),
            Err(source) => Err(MultiError::Link {
                points: points.len(),
                source,
            }),
        }
    }

    /// Whether this kernel knows such links. A path that cannot exist is refused with ENOENT by one
    /// that does (it looks the path up), and with EINVAL by one that does not.
    #[must_use]
    pub fn supported(&self) -> bool {
        let nowhere = c"/proc/self/perf-gate-no-such-file";
        match self.attach(nowhere, &[(0, 0)], Scope::Everyone, false) {
            Err(MultiError::Link { source, .. }) => source.raw_os_error() != Some(libc::EINVAL),
            _ => true,
        }
    }
}

fn bpf(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: both commands used here return a new close-on-exec descriptor or -1, and every pointer
    // in `attr` outlives the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            cmd as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if fd < 0 {
        Err(io::Error::last_os_error())
    } else {
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    }
}
