use super::*;
use crate::target::{
    Launch,
    testing::{alone, argv, start, until},
};

#[test]
fn orphans_are_adopted_and_stops_are_not_ends() {
    if !alone("target::reap::tests::orphans_are_adopted_and_stops_are_not_ends") {
        return;
    }
    let mut reaper = Reaper::new().unwrap();
    assert!(!reaper.alive());
    assert!(reaper.reap().is_empty());
    // The grandchild's parent leaves at once; the grandchild ends by a signal of its own.
    let script = "(sh -c 'sleep 0.2; kill -9 $$' &) ; kill -STOP $$; exit 5";
    let launch = Launch {
        argv: argv(&["sh", "-c", script]),
        ..Launch::default()
    };
    let child = start(&launch).unwrap();
    let mut seen = Vec::new();
    until("the grandchild's end", || {
        seen.extend(reaper.reap());
        seen.iter()
            .any(|r| matches!(r.end, End::Killed { signal: 9, .. }) && r.pid != child.pid())
    });
    assert!(seen.iter().all(|r| r.pid != child.pid()), "{seen:?}");
    assert!(reaper.alive());
    child.signal(nix::sys::signal::Signal::SIGCONT);
    until("the child's end", || {
        seen.extend(reaper.reap());
        seen.iter().any(|r| r.pid == child.pid())
    });
    let own = seen.iter().find(|r| r.pid == child.pid()).unwrap();
    assert_eq!(own.end, End::Exited(5));
    assert!(own.usage.peak_rss_bytes > 100_000 && own.usage.minor_faults > 0);
    until("the last orphan", || {
        seen.extend(reaper.reap());
        !reaper.alive()
    });
}

#[test]
fn usage_counts_the_work_done() {
    let launch = Launch {
        argv: argv(&[
            "sh",
            "-c",
            "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done",
        ]),
        ..Launch::default()
    };
    let pid = start(&launch).unwrap().pid();
    let reaped = wait4(pid.cast_signed(), 0).unwrap();
    assert_eq!(reaped.end, End::Exited(0));
    assert!(reaped.usage.user_ns + reaped.usage.system_ns > 10_000_000);
    assert_eq!(wait4(pid.cast_signed(), 0), None);
}
