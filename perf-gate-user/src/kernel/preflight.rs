//! The facts about this machine that `watch` depends on, one row each.
//!
//! Every row is judged by a function of what was found, so that machines other than this one can be
//! played in tests; [`preflight`] finds and calls them.

use std::{fs, io};

use super::{
    attempt,
    btf::{self, BtfError},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Ok,
    /// `watch` works, but something is slower or missing from the report.
    Warn,
    /// `watch` does not work.
    Fail,
}

impl Status {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One row: what was looked at, what was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    pub found: String,
    pub todo: Option<String>,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            found: found.into(),
            todo: None,
        }
    }

    pub fn warn(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Warn,
            found: found.into(),
            todo: Some(todo.into()),
        }
    }

    pub fn fail(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self {
            status: Status::Fail,
            ..Self::warn(name, found, todo)
        }
    }
}

/// Looks at everything. Takes a few milliseconds and leaves nothing behind.
#[must_use]
pub fn preflight() -> Vec<Check> {
    let read = |path: &str| fs::read_to_string(path).map(|s| s.trim().to_owned());
    let status = read("/proc/self/status").unwrap_or_default();
    let confined = confinement(&status);
    let mut rows = vec![
        machine(std::env::consts::ARCH),
        kernel(&read("/proc/sys/kernel/osrelease").unwrap_or_default()),
        privileges(&status),
        bpf("bpf maps", attempt::map(), confined),
        bpf("bpf programs", attempt::program(), confined),
        multi(attempt::multi()),
        types(btf::task_pid_offset()),
        lockdown(read("/sys/kernel/security/lockdown")),
        software(attempt::software_counter()),
        paranoid(read("/proc/sys/kernel/perf_event_paranoid")),
        hardware(attempt::hardware_counter()),
        breakpoints(attempt::breakpoint()),
        tracefs(fs::metadata("/sys/kernel/tracing/events").is_ok()),
        container(container_hint(), confined),
        pid_namespace(&status),
    ];
    rows.extend(open_files(nix::sys::resource::getrlimit(
        nix::sys::resource::Resource::RLIMIT_NOFILE,
    )));
    rows
}

fn machine(arch: &str) -> Check {
    match arch {
        "x86_64" => Check::ok("machine", arch),
        _ => Check::fail(
            "machine",
            arch,
            "run on x86-64: function arguments are read from its registers",
        ),
    }
}

fn kernel(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Check::warn(
            "kernel",
            format!("{release:?}, not understood"),
            "Linux 6.1 or later is needed",
        );
    };
    let version: (u32, u32) = (major, minor);
    match version {
        (6, 1..) | (7.., _) => Check::ok("kernel", release),
        _ => Check::fail("kernel", release, "use Linux 6.1 or later"),
    }
}

/// A field of `/proc/self/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim())
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

fn privileges(status: &str) -> Check {
    let name = "privileges";
    let effective = field(status, "CapEff").and_then(|h| u64::from_str_radix(h, 16).ok());
    let Some(effective) = effective else {
        return Check::warn(
            name,
            "unknown",
            "/proc/self/status does not say; the rows below tell",
        );
    };
    let has = |cap: u32| effective >> cap & 1 == 1;
    let known = [
        (CAP_SYS_ADMIN, "CAP_SYS_ADMIN"),
        (CAP_BPF, "CAP_BPF"),
        (CAP_PERFMON, "CAP_PERFMON"),
    ];
    let held: Vec<_> = known
        .iter()
        .filter(|(cap, _)| has(*cap))
        .map(|(_, n)| *n)
        .collect();
    if has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON)) {
        return Check::ok(name, held.join(", "));
    }
    let found = if held.is_empty() {
        "none".to_owned()
    } else {
        format!("only {}", held.join(", "))
    };
    Check::fail(
        name,
        found,
        "run under sudo, or give the binary the two capabilities: setcap cap_bpf,cap_perfmon+ep perf-gate",
    )
}

/// Filters between us and the kernel, from the process's own status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Confinement {
    seccomp: bool,
    no_new_privs: bool,
}

fn confinement(status: &str) -> Confinement {
    Confinement {
        seccomp: field(status, "Seccomp").is_some_and(|mode| mode != "0"),
        no_new_privs: field(status, "NoNewPrivs") == Some("1"),
    }
}

const DOCKER: &str = "docker run --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE --security-opt seccomp=unconfined ...";

fn bpf(name: &'static str, tried: io::Result<()>, confined: Confinement) -> Check {
    let error = match tried {
        Ok(()) => return Check::ok(name, "works"),
        Err(error) => error,
    };
    let todo = match error.raw_os_error() {
        Some(libc::ENOSYS) => "use a kernel built with CONFIG_BPF_SYSCALL".to_owned(),
        Some(libc::EPERM | libc::EACCES) if confined.seccomp => {
            format!("run as root; if you are, a seccomp filter refuses it: {DOCKER}")
        }
        Some(libc::EPERM | libc::EACCES) => {
            "run under sudo, or give CAP_BPF and CAP_PERFMON".to_owned()
        }
        _ => "see the kernel's log (dmesg) for the cause".to_owned(),
    };
    Check::fail(name, error.to_string(), todo)
}

fn multi(tried: io::Result<bool>) -> Check {
    let name = "many probes at once";
    match tried {
        Ok(true) => Check::ok(name, "works (uprobe_multi)"),
        Ok(false) => Check::warn(
            name,
            "this kernel attaches probes one by one",
            "use Linux 6.6 or later: letting go of probes then takes a tenth of a second, not seconds; until then CAP_SYS_ADMIN (root) is needed",
        ),
        Err(e) => Check::fail(name, e.to_string(), "see the rows on bpf above"),
    }
}

fn types(offset: Result<u32, BtfError>) -> Check {
    let name = "kernel types (BTF)";
    match offset {
        Ok(offset) => Check::ok(name, format!("task_struct.pid at byte {offset}")),
        Err(e) => Check::warn(
            name,
            e.to_string(),
            "watch a node process directly, not through npm, a shell or a test runner that forks",
        ),
    }
}

fn lockdown(text: io::Result<String>) -> Check {
    let name = "lockdown";
    let Ok(text) = text else {
        return Check::ok(name, "not in this kernel");
    };
    let mode = text
        .split('[')
        .nth(1)
        .and_then(|s| s.split(']').next())
        .unwrap_or(&text);
    match mode {
        "confidentiality" => Check::warn(
            name,
            mode,
            "forked processes cannot be followed in this mode; boot with lockdown=integrity or lower",
        ),
        _ => Check::ok(name, mode),
    }
}

fn software(tried: io::Result<()>) -> Check {
    let name = "kernel counters";
    match tried {
        Ok(()) => Check::ok(name, "works"),
        Err(e) => Check::warn(
            name,
            e.to_string(),
            "page faults, context switches and task clock will be missing: run as root or with CAP_PERFMON, and let seccomp pass perf_event_open",
        ),
    }
}

fn paranoid(text: io::Result<String>) -> Check {
    let name = "perf_event_paranoid";
    match text {
        // It binds only those without CAP_PERFMON, for whom the rows above fail anyway.
        Ok(value) => Check::ok(name, format!("{value} (does not matter with CAP_PERFMON)")),
        Err(_) => Check::warn(
            name,
            "not there",
            "use a kernel built with CONFIG_PERF_EVENTS for counters",
        ),
    }
}

fn hardware(tried: io::Result<()>) -> Check {
    let name = "hardware counters";
    match tried {
        Ok(()) => Check::ok(name, "works"),
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV)
            ) =>
        {
            Check::warn(
                name,
                format!("none here ({e})"),
                "instructions and cycles will be missing: virtual machines often hide them, ask for a vPMU",
            )
        }
        Err(e) => Check::warn(
            name,
            e.to_string(),
            "instructions and cycles will be missing: run as root or with CAP_PERFMON",
        ),
    }
}

fn breakpoints(tried: io::Result<()>) -> Check {
    let name = "hardware breakpoints";
    match tried {
        Ok(()) => Check::ok(name, "works"),
        Err(e) => Check::warn(
            name,
            e.to_string(),
            "nothing to do: watch does not need them",
        ),
    }
}

fn tracefs(mounted: bool) -> Check {
    let found = if mounted { "mounted" } else { "not mounted" };
    Check::ok("tracefs", format!("{found} (not needed)"))
}

fn container_hint() -> Option<&'static str> {
    let there = |path: &str| fs::symlink_metadata(path).is_ok();
    if there("/.dockerenv") {
        return Some("Docker (/.dockerenv)");
    }
    if there("/run/.containerenv") {
        return Some("Podman (/run/.containerenv)");
    }
    let groups = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    let known = ["kubepods", "docker", "containerd", "libpod", "lxc"];
    let marked = known.iter().any(|name| groups.contains(name));
    marked.then_some("a container (/proc/1/cgroup)")
}

fn container(hint: Option<&str>, confined: Confinement) -> Check {
    let name = "container";
    let mut found = vec![hint.unwrap_or("none seen").to_owned()];
    if confined.seccomp {
        found.push("seccomp filter".into());
    }
    if confined.no_new_privs {
        found.push("no new privileges".into());
    }
    let found = found.join(", ");
    match (hint, confined) {
        (_, Confinement { seccomp: true, .. }) => {
            Check::warn(name, found, format!("if a row above fails: {DOCKER}"))
        }
        (
            _,
            Confinement {
                no_new_privs: true, ..
            },
        ) => Check::warn(
            name,
            found,
            "sudo cannot work under no_new_privs: start perf-gate with its privileges instead",
        ),
        _ => Check::ok(name, found),
    }
}

fn pid_namespace(status: &str) -> Check {
    let name = "pid namespace";
    // The initial one has a fixed inode number in every kernel.
    let initial =
        fs::read_link("/proc/self/ns/pid").is_ok_and(|l| l.as_os_str() == "pid:[4026531836]");
    match (initial, field(status, "NSpid")) {
        _ if !super::proc_is_ours() => Check::fail(
            name,
            "/proc is missing or shows another one",
            super::PROC_ADVICE,
        ),
        (true, _) => Check::ok(name, "the initial one"),
        (false, Some(_)) => Check::ok(name, "a nested one: processes are told by their ids in it"),
        (false, None) => Check::warn(name, "unknown", "mount /proc of this namespace"),
    }
}

/// Descriptors: one for each program, map, counter and link; a handful for each watched process.
fn open_files(limit: nix::Result<(u64, u64)>) -> Option<Check> {
    const FEW: u64 = 512;
    let (soft, hard) = limit.ok()?;
    Some(match soft {
        _ if soft >= FEW => Check::ok("open files", soft.to_string()),
        _ => Check::warn(
            "open files",
            format!("{soft}, at most {hard}"),
            format!(
                "a tree of many processes needs more: ulimit -n {}",
                hard.min(65_536)
            ),
        ),
    })
}

#[cfg(test)]
mod tests;
