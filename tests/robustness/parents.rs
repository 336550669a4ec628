//! Parents that look closely at their children, and terminals. New programs are held at their start; no
//! parent may notice: a stop would make `su`, `sudo`, `script` and job control suspend what they run.

use crate::{
    fixtures,
    support::{PATIENCE, environment, have, node, run, shell},
};
use nix::pty::openpty;
use perf_gate_tests::{Node, Watch, binary};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::{fd::AsRawFd as _, unix::process::CommandExt as _},
    process::Command,
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

#[test]
fn a_parent_sees_an_end_and_nothing_else() {
    let Some(node) = node() else { return };
    let run = Watch::new().run(fixtures::command("watchful_parent", &node));
    let run = run.expect_code(0);
    let saw: Vec<_> = run.stdout.lines().filter(|l| l.contains("SAW ")).collect();
    assert!(
        saw.len() == 1 && saw[0].contains("Exited"),
        "{saw:?}\n{}",
        run.stderr
    );
    assert_eq!(run.nodes().len(), 1);
}

#[test]
fn programs_that_suspend_with_their_child_work() {
    let Some(node) = node() else { return };
    for (program, command) in [
        ("sudo", r#"sudo -n "$0" --expose-gc -e "gc()""#),
        ("su", r#"su -c "$0 --expose-gc -e 'gc()'" root"#),
        (
            "script",
            r#"script -qec "$0 --expose-gc -e 'gc()'" /dev/null"#,
        ),
        (
            "strace",
            r#"strace -f -o /dev/null "$0" --expose-gc -e "gc()""#,
        ),
        (
            "gdb",
            r#"gdb -nx -batch -ex run --args "$0" --expose-gc -e "gc()""#,
        ),
    ] {
        if !have(program) {
            continue;
        }
        let words = [
            "sh".as_ref(),
            "-c".as_ref(),
            command.as_ref(),
            node.path.as_os_str(),
        ];
        let run = Watch::new().patience(PATIENCE).run(words).expect_code(0);
        assert_eq!(run.of("isolate").count(), 1, "{program}: {}", run.stderr);
        let iso = run.of("isolate").next().expect("counted above");
        assert_eq!(iso["mark_compacts"], 1, "{program}");
    }
}

#[test]
fn perf_gate_inside_perf_gate() {
    let Some(node) = node() else { return };
    let inner = [
        binary().into_os_string(),
        "watch".into(),
        "--max-old-gen".into(),
        "0".into(),
        "--".into(),
        node.path.clone().into(),
        "--expose-gc".into(),
        "-e".into(),
        "gc()".into(),
    ];
    // The inner one fails its budget; the outer one sees the same collection.
    let outer = Watch::new().run(inner).expect_code(1);
    assert!(outer.stderr.contains("old-generation") || outer.stderr.contains("max-old-gen"));
    let iso = outer.of("isolate").next().expect("node is in its tree");
    assert_eq!(iso["mark_compacts"], 1);
}

/// A program on a terminal of its own.
struct OnTerminal {
    child: std::process::Child,
    terminal: File,
    shown: String,
    more: Receiver<Vec<u8>>,
}

impl OnTerminal {
    fn start(mut command: Command) -> Self {
        let pty = openpty(None, None).expect("a terminal");
        let inner = pty.slave;
        let dup = || inner.try_clone().expect("a descriptor");
        command.stdin(dup()).stdout(dup()).stderr(dup());
        let fd = inner.as_raw_fd();
        // SAFETY: two system calls.
        unsafe {
            command.pre_exec(move || {
                nix::unistd::setsid()?;
                if nix::libc::ioctl(fd, nix::libc::TIOCSCTTY, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().expect("it starts");
        drop(command);
        let terminal = File::from(pty.master);
        let mut reader = terminal.try_clone().expect("a descriptor");
        let (tell, more) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if tell.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            terminal,
            shown: String::new(),
            more,
        }
    }

    /// Waits for a text after everything that was waited for before.
    fn expect(&mut self, text: &str) -> &mut Self {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return self;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.more.recv_timeout(left) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(e) => {
                    let _ = self.child.kill();
                    panic!("no {text:?} ({e}) in: {}", self.shown);
                }
            }
        }
    }

    fn type_in(&mut self, keys: &str) -> &mut Self {
        self.terminal
            .write_all(keys.as_bytes())
            .expect("it takes keys");
        self
    }

    fn code(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }
}

/// `perf-gate watch --quiet -- COMMAND`, for a terminal.
fn watched(words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["watch", "--quiet", "--"]).args(words);
    environment(&mut command).env("TERM", "dumb");
    command
}

#[test]
fn a_prompt_on_a_terminal() {
    let Some(node) = node() else { return };
    let mut on = OnTerminal::start(watched(&[&path(&node), "-i"]));
    on.expect(">").type_in("40+2\r").expect("42");
    on.type_in("process.stdout.isTTY + '!'\r").expect("true!");
    on.type_in(".exit\r");
    assert_eq!(on.code(), Some(0));
}

#[test]
fn the_interrupt_key_reaches_the_program_once() {
    let Some(node) = node() else { return };
    let script = "let n = 0; process.on('SIGINT', () => console.log('INT' + ++n + ';'));
        process.on('SIGTERM', () => { console.log('total ' + n + '.'); process.exit(7) });
        setInterval(() => {}, 1e3); console.log('ready');";
    let mut on = OnTerminal::start(watched(&[&path(&node), "-e", script]));
    on.expect("ready").type_in("\x03").expect("INT1;");
    on.type_in("\x03").expect("INT2;");
    thread::sleep(Duration::from_millis(200));
    let pid = nix::unistd::Pid::from_raw(on.child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).expect("perf-gate is there");
    on.expect("total 2.");
    assert_eq!(on.code(), Some(7));
}

#[test]
fn job_control_in_a_shell_inside() {
    let Some(node) = node() else { return };
    if !have("bash") {
        return;
    }
    let mut command = watched(&["bash", "--norc", "--noediting", "-i"]);
    command.env("PS1", "prompt> ").env("NODE", &node.path);
    let mut on = OnTerminal::start(command);
    on.expect("prompt> ");
    on.type_in("\"$NODE\" -p '6*7'; echo code=$? jobs=$(jobs | wc -l).\r")
        .expect("42")
        .expect("code=0 jobs=0.");
    let sleeper = "\"$NODE\" -e 'setInterval(() => {}, 1e3); console.log(1+1 + \" up\")'\r";
    on.type_in(sleeper)
        .expect("2 up")
        .type_in("\x1a")
        .expect("Stopped");
    on.type_in("fg\r").expect("setInterval");
    thread::sleep(Duration::from_millis(100));
    on.type_in("\x03").expect("prompt> ");
    on.type_in("echo code=$?.; exit 5\r").expect("code=130.");
    assert_eq!(on.code(), Some(5));
}

#[test]
fn the_suspend_key_stops_both_and_fg_continues_both() {
    let Some(node) = node() else { return };
    if !have("bash") {
        return;
    }
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noediting", "-i"]);
    environment(&mut shell)
        .env("PS1", "prompt> ")
        .env("TERM", "dumb");
    shell.env("GATE", binary()).env("NODE", &node.path);
    let mut on = OnTerminal::start(shell);
    on.expect("prompt> ");
    on.type_in("\"$GATE\" watch --quiet -- \"$NODE\" -e 'console.log(1+1+\" up\");setTimeout(()=>console.log(\"done \"+3*3),1500)'\r");
    on.expect("2 up")
        .type_in("\x1a")
        .expect("Stopped")
        .expect("prompt> ");
    on.type_in("fg\r").expect("done 9").expect("prompt> ");
    on.type_in("exit 0\r");
    assert_eq!(on.code(), Some(0));
}

#[test]
fn what_perf_gate_was_given_is_what_the_program_gets() {
    let Some(node) = node() else { return };
    // The same with and without perf-gate, whatever this test itself was given.
    let of = |watch: &str| {
        let script = format!(
            r#"ulimit -Sn 77; trap '' USR1; exec 7</dev/null; exec {watch} sh -c '
            ulimit -Sn; ls /proc/self/fd; grep -E "SigIgn|SigBlk|NoNewPrivs|Cap" /proc/self/status;
            umask; pwd; env -u PERF_GATE_CACHE_DIR -u PERF_GATE_MARK | sort'"#
        );
        run(shell(&script, &node))
    };
    let (bare, watched) = (of(""), of("\"$1\" watch --quiet --"));
    assert!(bare.out.starts_with("77\n0\n1\n"), "{}", bare.out);
    assert_eq!(watched.out, bare.out, "{}", watched.err);
}

fn path(node: &Node) -> String {
    node.path.display().to_string()
}
