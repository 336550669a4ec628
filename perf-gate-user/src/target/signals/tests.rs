use std::{fs::File, io::Write, os::fd::AsRawFd};

use nix::sys::signal::{kill, raise};
use nix::unistd::Pid;

use super::*;
use crate::{
    model::End,
    target::{
        Inherited, Launch, exit,
        testing::{alone, argv, file, open_dir, plain, start, until},
    },
};

fn next(signals: &mut Signals) -> SignalEvent {
    let mut events = Vec::new();
    until("a signal", || {
        events = signals.drain();
        events.retain(|e| *e != SignalEvent::Child);
        !events.is_empty()
    });
    assert_eq!(events.len(), 1, "{events:?}");
    events[0]
}

#[test]
fn sent_signals_are_for_the_child_unless_it_sent_them() {
    if !alone("target::signals::tests::sent_signals_are_for_the_child_unless_it_sent_them") {
        return;
    }
    let mut signals = Signals::new().unwrap();
    assert!(signals.drain().is_empty());
    for signal in FORWARDED {
        kill(Pid::this(), signal).unwrap();
        let event = next(&mut signals);
        let sender = std::process::id();
        assert_eq!(event, SignalEvent::Sent { signal, sender });
        assert_eq!(event.to_forward(1), Some(signal));
        assert_eq!(event.to_forward(sender), None);
    }
    raise(Signal::SIGTERM).unwrap();
    assert!(next(&mut signals).asks_to_stop());

    let launch = Launch {
        argv: argv(&["sleep", "1000"]),
        ..Launch::default()
    };
    let child = start(&launch).unwrap();
    kill(Pid::this(), Signal::SIGTERM).unwrap();
    let signal = next(&mut signals).to_forward(child.pid()).unwrap();
    assert!(child.signal(signal));
    until("its end", || signals.drain().contains(&SignalEvent::Child));
    assert_eq!(exit::code_for(child.wait()), 143);
}

#[test]
fn ignored_sigchld_is_undone_for_perf_gate_and_kept_for_the_child() {
    if !alone(
        "target::signals::tests::ignored_sigchld_is_undone_for_perf_gate_and_kept_for_the_child",
    ) {
        return;
    }
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring runs no code.
    unsafe { sigaction(Signal::SIGCHLD, &ignore) }.unwrap();
    assert!(Inherited::capture().ignored[libc::SIGCHLD as usize]);
    let _signals = Signals::new().unwrap();
    let launch = Launch {
        argv: argv(&["sh", "-c", "exit 9"]),
        ..Launch::default()
    };
    assert_eq!(start(&launch).unwrap().wait(), End::Exited(9));
}

/// ^C on a real terminal: perf-gate survives it, the child has it once, nothing is to be forwarded.
#[test]
fn the_terminals_signals_reach_the_child_once() {
    if !alone("target::signals::tests::the_terminals_signals_reach_the_child_once") {
        return;
    }
    let pty = nix::pty::openpty(None, None).unwrap();
    // SAFETY: takes numbers; this process leads a session without a terminal.
    let done = unsafe { libc::ioctl(pty.slave.as_raw_fd(), libc::TIOCSCTTY, 0) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    let mut signals = Signals::new().unwrap();
    let dir = open_dir();
    let log = file(dir.path(), "log", 0o666, b"");
    let script = "trap 'echo int >>$LOG' INT; trap 'exit 4' TERM; echo up >>$LOG; \
        while :; do sleep 0.05; done";
    let launch = Launch {
        argv: argv(&["sh", "-c", script]),
        env: vec![("LOG".into(), log.clone().into())],
        ..Launch::default()
    };
    let child = start(&launch).unwrap();
    let lines = || std::fs::read_to_string(&log).unwrap();
    until("the child", || lines() == "up\n");
    let mut master = File::from(pty.master);
    for round in 1..=3 {
        master.write_all(b"\x03").unwrap();
        let event = next(&mut signals);
        assert_eq!(event, SignalEvent::Terminal(Signal::SIGINT));
        assert_eq!(event.to_forward(child.pid()), None);
        until("the child's", || lines().matches("int").count() == round);
    }
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(lines().matches("int").count(), 3);
    child.signal(Signal::SIGTERM);
    assert_eq!(child.wait(), End::Exited(4));
}

#[test]
fn the_mask_is_restored_and_late_signals_do_not_kill() {
    if !alone("target::signals::tests::the_mask_is_restored_and_late_signals_do_not_kill") {
        return;
    }
    let open = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&open), None).unwrap();
    let signals = Signals::new().unwrap();
    raise(Signal::SIGTERM).unwrap();
    drop(signals);
    assert_eq!(SigSet::thread_get_mask().unwrap(), open);
    let _ = plain();
}
