//! Getting rid of probes without making anybody wait.
//!
//! Detaching waits for RCU grace periods. A `uprobe_multi` link takes tens of milliseconds: a thread of
//! its own drops them. A perf-event uprobe takes a tenth of a second, and a run has dozens: at the end a
//! forked holder inherits the descriptors, so that this process can leave at once and the holder's own
//! exit, which nobody waits for, drops them.

use super::attach::Links;
use std::sync::mpsc::{Sender, channel};

pub struct Detacher {
    to_thread: Sender<Links>,
    /// Links that are slow to drop, kept to the end.
    slow: Vec<Links>,
}

impl Detacher {
    pub fn new() -> Self {
        let (to_thread, links) = channel::<Links>();
        // Without the thread, links are dropped with the channel.
        let _ = std::thread::Builder::new()
            .name("detach".into())
            .stack_size(64 * 1024)
            .spawn(move || links.iter().for_each(drop));
        Self {
            to_thread,
            slow: Vec::new(),
        }
    }

    pub fn take(&mut self, links: Option<Links>) {
        match links {
            Some(links) if links.slow() => self.slow.push(links),
            Some(links) => drop(self.to_thread.send(links)),
            None => {}
        }
    }

    /// Leaves slow links to a holder process and forgets them here.
    pub fn leave(&mut self) {
        if self.slow.is_empty() {
            return;
        }
        // SAFETY: the child calls nothing but async-signal-safe functions.
        unsafe {
            match libc::fork() {
                0 => {
                    // A reader of our output must not wait for the holder, nor a terminal signal it.
                    libc::setsid();
                    for fd in 0..3 {
                        libc::close(fd);
                    }
                    // Its exit closes the descriptors.
                    libc::_exit(0)
                }
                // No holder: dropping takes its time.
                -1 => self.slow.clear(),
                // The holder has them; closing ours is not the last close, but each would still wait.
                _ => std::mem::take(&mut self.slow)
                    .into_iter()
                    .for_each(std::mem::forget),
            }
        }
    }
}
