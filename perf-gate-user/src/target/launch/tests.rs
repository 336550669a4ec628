use std::{
    ffi::CString,
    fs::{self, Permissions},
    os::{fd::FromRawFd, unix::fs::PermissionsExt},
    path::Path,
};

use super::*;
use crate::target::{
    exit,
    testing::{
        alone, argv, file, is_dead, nobody, open_dir, output, plain, rerun, skipped, start, until,
        word,
    },
};

fn error(launch: &Launch) -> LaunchError {
    start(launch).expect_err("must not run")
}

fn failure(words: &[&str], cwd: Option<&Path>) -> (u8, String) {
    let error = error(&Launch {
        argv: argv(words),
        cwd: cwd.map(Path::to_owned),
        ..Launch::default()
    });
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text:?} is more than one line");
    (error.exit_code(), text)
}

#[test]
fn failures_to_execute_have_the_codes_of_a_shell() {
    // Alone: a file that another test's fresh child still holds open for writing is "busy".
    if !alone("target::launch::tests::failures_to_execute_have_the_codes_of_a_shell") {
        return;
    }
    let dir = open_dir();
    let at = dir.path();
    file(at, "empty", 0o755, b"");
    file(at, "plain", 0o644, b"#!/bin/sh\n");
    file(at, "text", 0o755, b"echo must not run\n");
    file(at, "orphan", 0o755, b"#!/no/such/interpreter\n");
    file(at, "elf", 0o755, b"\x7fELF\x02\x01\x01");
    fs::create_dir(at.join("dir")).unwrap();
    for (name, code, word) in [
        ("./empty", 126, "empty"),
        ("./plain", 126, "execute permission"),
        ("./text", 126, "not a program"),
        ("./orphan", 126, "interpreter"),
        ("./elf", 126, "not a program"),
        ("./dir", 126, "directory"),
        ("./plain/x", 127, "not found"),
        ("./missing", 127, "not found"),
        ("no-such-command-here", 127, "not found"),
        ("", 127, "not found"),
    ] {
        let (found, text) = failure(&[name], Some(at));
        assert_eq!(found, code, "{name}: {text}");
        assert!(text.contains(word), "{name}: {text}");
    }
    assert_eq!(failure(&[], None).0, exit::USAGE);
    assert_eq!(failure(&["a\0b"], None).0, exit::USAGE);
    assert_eq!(failure(&["true"], Some(Path::new("/no/such"))).0, 126);
}

#[test]
fn the_search_uses_the_childs_path_and_directory() {
    // Alone: a file that another test's fresh child still holds open for writing is "busy".
    if !alone("target::launch::tests::the_search_uses_the_childs_path_and_directory") {
        return;
    }
    let dir = open_dir();
    let at = dir.path();
    for sub in ["denied", "asdir", "good"] {
        fs::create_dir(at.join(sub)).unwrap();
    }
    file(&at.join("denied"), "prog", 0o644, b"");
    fs::create_dir(at.join("asdir/prog")).unwrap();
    let mut launch = Launch {
        argv: argv(&["prog"]),
        cwd: Some(at.to_owned()),
        env: vec![("PATH".into(), "none:denied:asdir:good".into())],
        ..Launch::default()
    };
    // The first thing that was there is what the user hears about.
    let refused = error(&launch);
    assert_eq!(refused.exit_code(), 126);
    assert!(refused.to_string().contains("denied/prog"), "{refused}");
    file(&at.join("good"), "prog", 0o755, b"#!/bin/sh\nexit 7\n");
    assert_eq!(start(&launch).unwrap().wait(), End::Exited(7));
    launch.env[0].1 = "none".into();
    assert_eq!(error(&launch).exit_code(), 127);

    // A directory that the user may not enter does not make a missing command "not executable".
    let Some(identity) = nobody() else { return };
    fs::set_permissions(at.join("denied"), Permissions::from_mode(0o700)).unwrap();
    launch.identity = identity;
    launch.env[0].1 = "denied:none".into();
    assert_eq!(error(&launch).exit_code(), 126);
    fs::remove_file(at.join("denied/prog")).unwrap();
    assert_eq!(error(&launch).exit_code(), 127);
}

#[test]
fn suspended_until_released() {
    let dir = open_dir();
    let mark = dir.path().join("mark");
    let launch = Launch {
        argv: argv(&["touch", mark.to_str().unwrap()]),
        ..Launch::default()
    };
    let suspended = spawn(&launch, &plain()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!mark.exists());
    let pid = suspended.pid();
    drop(suspended);
    assert!(is_dead(pid));
    assert!(!mark.exists());
    assert_eq!(start(&launch).unwrap().wait(), End::Exited(0));
    assert!(mark.exists());
}

#[test]
fn a_child_killed_before_its_release_is_reported_by_its_end() {
    let launch = Launch {
        argv: argv(&["true"]),
        ..Launch::default()
    };
    let suspended = spawn(&launch, &plain()).unwrap();
    let pid = suspended.pid();
    suspended.running.as_ref().unwrap().signal(Signal::SIGTERM);
    until("its death", || is_dead(pid));
    let running = suspended.release().unwrap().wait_exec().unwrap();
    let end = running.wait();
    assert_eq!(exit::code_for(end), 143);
    assert!(!running.signal(Signal::SIGTERM));
}

#[test]
fn the_user_is_dropped_to_for_good() {
    let Some(mut identity) = nobody() else { return };
    let groups = &mut identity.user.as_mut().unwrap().groups;
    groups.push(nix::unistd::Gid::from_raw(7));
    let launch = Launch {
        identity,
        ..Launch::default()
    };
    let script = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; grep ^Cap /proc/self/status; \
        grep ^[UG]id /proc/self/status";
    let text = output(launch, &plain(), script);
    let mut lines = text.lines();
    for expected in [
        "65534",
        "65534",
        "65534 7",
        "/nonexistent nobody nobody",
        "CapInh:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
    ] {
        assert_eq!(lines.next(), Some(expected), "{text}");
    }
    assert!(text.contains("CapAmb:\t0000000000000000"), "{text}");
    assert!(text.contains("Uid:\t65534\t65534\t65534\t65534"), "{text}");
    assert!(text.contains("Gid:\t65534\t65534\t65534\t65534"), "{text}");
}

#[test]
fn what_the_user_may_not_reach_is_refused_by_name() {
    // Alone: a file that another test's fresh child still holds open for writing is "busy".
    if !alone("target::launch::tests::what_the_user_may_not_reach_is_refused_by_name") {
        return;
    }
    let Some(identity) = nobody() else { return };
    let dir = open_dir();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
    let path = file(dir.path(), "prog", 0o755, b"#!/bin/sh\n");
    let refused = error(&Launch {
        argv: vec![path.into()],
        identity,
        ..Launch::default()
    });
    assert_eq!(refused.exit_code(), 126);
    assert!(refused.to_string().contains("denied for nobody"));
}

#[test]
fn without_the_right_to_become_the_user_nothing_runs() {
    let Some(mut identity) = nobody() else { return };
    // A number that the kernel refuses stands for a refused right.
    identity.user.as_mut().unwrap().uid = nix::unistd::Uid::from_raw(u32::MAX);
    let refused = error(&Launch {
        argv: argv(&["true"]),
        identity,
        ..Launch::default()
    });
    assert_eq!(refused.exit_code(), exit::CANNOT_VOUCH);
}

#[test]
fn only_inherited_descriptors_pass() {
    let open = |name: &str| {
        let path = CString::new(name).unwrap();
        // SAFETY: a valid path; without O_CLOEXEC on purpose.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) };
        assert!(fd > 2);
        // SAFETY: just opened, and owned by nobody else.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    let (leak, meant) = (open("/etc/hosts"), open("/etc/hostname"));
    let mut inherited = plain();
    inherited.fds.push(meant.as_raw_fd());
    // Listed by a program of its own, as the shell keeps its redirections open meanwhile.
    let text = output(Launch::default(), &inherited, "exec ls -l /proc/$$/fd");
    assert!(text.contains("-> /etc/hostname"), "{text}");
    assert!(!text.contains("-> /etc/hosts"), "{text}");
    // Standard ones, the one meant, and the directory that ls reads.
    assert_eq!(text.matches(" -> ").count(), 5, "{text}");
    drop((leak, meant));
}

#[test]
fn signals_and_limits_are_as_perf_gate_found_them() {
    let mut inherited = plain();
    inherited.ignored = [false; 65];
    inherited.ignored[libc::SIGHUP as usize] = true;
    let nofile = libc::RLIMIT_NOFILE;
    for (resource, limit) in &mut inherited.limits {
        if *resource == nofile {
            limit.rlim_cur = 123;
        }
    }
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ulimit -n";
    let text = output(Launch::default(), &inherited, script);
    let mut lines = text.lines();
    let mut mask = |name| {
        let line = lines.next().and_then(|line| line.strip_prefix(name));
        u64::from_str_radix(line.unwrap_or_default().trim(), 16).unwrap()
    };
    assert_eq!(mask("SigBlk:"), 0, "{text}");
    // The C library keeps signals 32 and 33 to itself; they pass from whoever started the tests.
    assert_eq!(mask("SigIgn:") & !(0b11 << 31), 1 << (libc::SIGHUP - 1));
    assert_eq!(lines.next(), Some("123"));
}

#[test]
fn the_childs_end_is_its_own_code_or_128_plus_the_signal() {
    for (script, code) in [("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        let launch = Launch {
            argv: argv(&["sh", "-c", script]),
            ..Launch::default()
        };
        assert_eq!(exit::code_for(start(&launch).unwrap().wait()), code);
    }
}

/// Outside: kills the process that launched. In it: launches, tells the pids, and sleeps.
#[test]
fn the_child_dies_with_perf_gate() {
    const NAME: &str = "target::launch::tests::the_child_dies_with_perf_gate";
    if let Some(path) = word() {
        let sleep = |identity| Launch {
            argv: argv(&["sleep", "1000"]),
            identity,
            ..Launch::default()
        };
        let held = spawn(&sleep(Identity::current()), &plain()).unwrap();
        let own = start(&sleep(Identity::current())).unwrap();
        let other = nobody().map(|user| start(&sleep(user)).unwrap());
        let pids = [Some(held.pid()), Some(own.pid()), other.map(|o| o.pid())];
        let text: Vec<_> = pids.iter().flatten().map(u32::to_string).collect();
        fs::write(path.clone() + ".part", text.join(" ")).unwrap();
        fs::rename(path.clone() + ".part", path).unwrap();
        std::thread::sleep(std::time::Duration::from_secs(100));
        return;
    }
    let dir = open_dir();
    let path = dir.path().join("pids");
    let mut helper = rerun(NAME, path.to_str().unwrap());
    until("the pids", || path.exists());
    let text = fs::read_to_string(path).unwrap();
    let pids: Vec<u32> = text.split(' ').map(|p| p.parse().unwrap()).collect();
    assert!(pids.len() >= 2 && pids.iter().all(|pid| !is_dead(*pid)));
    helper.kill().unwrap();
    helper.wait().unwrap();
    until("their deaths", || pids.iter().all(|pid| is_dead(*pid)));
}

/// As the kernel side does it: the child is stopped in the middle of its exec.
#[test]
fn a_stop_during_exec_does_not_hold_up_the_answer() {
    if !alone("target::launch::tests::a_stop_during_exec_does_not_hold_up_the_answer") {
        return;
    }
    let launch = Launch {
        argv: argv(&["true"]),
        ..Launch::default()
    };
    let suspended = spawn(&launch, &plain()).unwrap();
    let pid = nix::unistd::Pid::from_raw(suspended.pid().cast_signed());
    let options = nix::sys::ptrace::Options::PTRACE_O_TRACEEXEC;
    if let Err(e) = nix::sys::ptrace::seize(pid, options) {
        skipped(&format!("no right to trace ({e})"));
        return;
    }
    let running = suspended.release().unwrap().wait_exec().unwrap();
    let status = nix::sys::wait::waitpid(pid, None).unwrap();
    assert!(
        matches!(status, nix::sys::wait::WaitStatus::PtraceEvent(..)),
        "{status:?}"
    );
    nix::sys::ptrace::detach(pid, None).unwrap();
    assert_eq!(running.wait(), End::Exited(0));
}

#[test]
fn standard_descriptors_are_never_ours() {
    if !alone("target::launch::tests::standard_descriptors_are_never_ours") {
        return;
    }
    // SAFETY: this process has the test to itself and reads nothing from 0.
    unsafe { libc::close(0) };
    crate::target::secure_stdio().unwrap();
    let script = "readlink /proc/$$/fd/0";
    assert_eq!(output(Launch::default(), &plain(), script), "/dev/null\n");
}
