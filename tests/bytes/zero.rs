//! An integer loop allocates nothing, and that is what its windows must read: every one of them, also
//! while more processes want to run than there are processors. PERF_GATE_SOAK=1 makes it 200 processes.

use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node};
use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// Keeps every processor busy for as long as it lives.
struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let count = thread::available_parallelism().map_or(2, usize::from);
        let threads = (0..count)
            .map(|_| {
                let stop = Arc::clone(&stop);
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        Self { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

const SCALES: [u64; 2] = [20_000, 160_000];

fn run(node: &Node, flags: &[&str], windows: usize, scale: u64) -> Observed {
    let mut command = vec![node.path.clone().into_os_string()];
    command.extend(flags.iter().map(Into::into));
    command.push(fixture("bytes/zero.mjs").into_os_string());
    command.push(windows.to_string().into());
    command.push(scale.to_string().into());
    let run = Watch::new().run(command).expect_code(0);
    run.expect_proven();
    run
}

/// The windows of the run that read something, shortly.
fn not_zero(run: &Observed, count: usize) -> Vec<String> {
    let windows: Vec<_> = run.of("window").filter(|w| w["id"] == 1).collect();
    assert_eq!(windows.len(), count);
    windows
        .iter()
        .enumerate()
        .filter(|(_, w)| w["bytes"] != 0 || w["breaks"] != 0)
        .map(|(i, w)| format!("{i}: {} {}", w["bytes"], w["allocated"]))
        .collect()
}

fn zero(node: &Node) {
    let soak = env::var_os("PERF_GATE_SOAK").is_some();
    let processes = if soak { 200 } else { 4 };
    let _busy = Busy::start();
    let mut wrong = Vec::new();
    for process in 0..processes {
        let run = run(node, &[], 20, SCALES[process % SCALES.len()]);
        wrong.extend(not_zero(&run, 20));
    }
    assert_eq!(wrong, Vec::<String>::new(), "of {} windows", processes * 20);
}

fn zero_interpreted(node: &Node) {
    for scale in SCALES {
        let run = run(node, &["--jitless"], 200, scale);
        assert_eq!(not_zero(&run, 200), Vec::<String>::new());
    }
}

on_each_node!(zero, zero_interpreted);
