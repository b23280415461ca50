//! Waits for another core's write to a cache line, without polling it and without the kernel, and pauses of a core that
//! polls.

use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// Longest wait (ticks of the TSC, some 40 us), since the expected writer may have ended.
#[cfg(target_arch = "x86_64")]
const TICKS_MAX: u32 = 100_000;

/// Longest pause between two looks of a core that polls (ticks of the TSC, less than 1 us): frames may come meanwhile.
#[cfg(target_arch = "x86_64")]
const PAUSE_TICKS: u32 = 2_000;

/// CPU instructions for such a wait, which not every processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Monitor {
    /// UMONITOR and UMWAIT: Intel's, since Tremont and Sapphire Rapids.
    Umwait,
    /// MONITORX and MWAITX: AMD's.
    Mwaitx,
}

impl Monitor {
    /// Returns the instructions of this processor. A hypervisor may hide them from its guests.
    pub fn of_this_processor() -> Option<Self> {
        static FOUND: OnceLock<Option<Monitor>> = OnceLock::new();
        let find = || Self::of(&fs::read_to_string("/proc/cpuinfo").ok()?);
        *FOUND.get_or_init(find)
    }

    /// Returns the instructions of a processor that `info`, in the form of `/proc/cpuinfo`, describes.
    fn of(info: &str) -> Option<Self> {
        let flags = info.lines().find(|line| line.starts_with("flags"))?;
        let has = |wanted: &str| flags.split_whitespace().any(|flag| flag == wanted);
        match (has("waitpkg"), has("mwaitx")) {
            (true, _) => Some(Self::Umwait),
            (false, true) => Some(Self::Mwaitx),
            (false, false) => None,
        }
    }

    /// Returns the name of the waiting instruction.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Umwait => "umwait",
            Self::Mwaitx => "mwaitx",
        }
    }

    /// Waits for a write near `word`, if its value is still `seen`. The wait may end sooner.
    ///
    /// On a processor without the instructions it ends this process, so the value must come from
    /// [`Self::of_this_processor`].
    #[cfg(target_arch = "x86_64")]
    pub fn wait(self, word: &AtomicU64, seen: u64) {
        self.wait_up_to(word, seen, TICKS_MAX);
    }

    #[cfg(target_arch = "x86_64")]
    fn wait_up_to(self, word: &AtomicU64, seen: u64, ticks_max: u32) {
        use std::arch::asm;
        use std::sync::atomic::Ordering;

        let address = word.as_ptr();
        match self {
            Self::Umwait => {
                // SAFETY: it arms the monitor for a line that this process may read, and changes nothing.
                unsafe { asm!("umonitor {}", in(reg) address, options(nostack, preserves_flags)) };
                if word.load(Ordering::Acquire) != seen {
                    return;
                }
                let until = crate::ticks::now() + u64::from(ticks_max);
                // SAFETY: the instruction waits in state C0.1, until `until` (EDX:EAX) at the latest. It
                // changes flags only.
                unsafe {
                    asm!(
                        "umwait {state:e}",
                        state = in(reg) 1_u32,
                        in("eax") until as u32, // its lower half
                        in("edx") (until >> 32) as u32,
                        options(nostack),
                    );
                }
            }
            Self::Mwaitx => {
                // SAFETY: as above; the line is in RAX, without extensions (ECX) and hints (EDX).
                unsafe {
                    asm!(
                        "monitorx",
                        in("rax") address,
                        in("ecx") 0,
                        in("edx") 0,
                        options(nostack, preserves_flags),
                    );
                }
                if word.load(Ordering::Acquire) != seen {
                    return;
                }
                // SAFETY: it waits for EBX ticks at most (bit 1 of ECX), in state C0 (EAX), and changes nothing. RBX is
                // the compiler's, and is put back.
                unsafe {
                    asm!(
                        "xchg rbx, {ticks}",
                        "mwaitx",
                        "xchg rbx, {ticks}",
                        ticks = inout(reg) u64::from(ticks_max) => _,
                        in("eax") 0xf0,
                        in("ecx") 2,
                        options(nostack, preserves_flags),
                    );
                }
            }
        }
    }

    /// The function is never called: this architecture has no such instructions.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn wait(self, _word: &AtomicU64, _seen: u64) {
        std::hint::spin_loop();
    }
}

/// How a core that polls pauses between two looks.
#[derive(Debug)]
pub struct Pause {
    /// The instructions of this processor for a light sleep; without them the pause is as short as it can be.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "no other processor has them")
    )]
    monitor: Option<Monitor>,
    /// The watched word, which nobody writes.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "as above"))]
    word: Box<AtomicU64>,
}

impl Default for Pause {
    /// Returns the pause of this processor.
    fn default() -> Self {
        Self { monitor: Monitor::of_this_processor(), word: Box::default() }
    }
}

impl Pause {
    /// Pauses for less than a microsecond. A processor with the instructions uses less power meanwhile, and leaves more
    /// of the core to its other thread.
    #[inline]
    pub fn wait(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Some(monitor) = self.monitor {
            monitor.wait_up_to(&self.word, 0, PAUSE_TICKS);
            return;
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::*;

    #[test]
    fn the_instructions_are_chosen_by_what_the_processor_has() {
        let of =
            |flags: &str| Monitor::of(&format!("processor\t: 0\nflags\t\t: fpu {flags} sse\n"));
        assert_eq!(of("waitpkg"), Some(Monitor::Umwait));
        assert_eq!(of("mwaitx"), Some(Monitor::Mwaitx));
        assert_eq!(of("mwaitx waitpkg"), Some(Monitor::Umwait));
        assert_eq!(of("monitor mwaitx2"), None, "the kernel's own MWAIT is no program's");
        assert_eq!(Monitor::of("Features : fp asimd"), None);
        let pauses = [Pause::default(), Pause { monitor: None, word: Box::default() }];
        for pause in pauses {
            let mut times: Vec<_> = (0..1000)
                .map(|_| {
                    let start = std::time::Instant::now();
                    pause.wait();
                    start.elapsed()
                })
                .collect();
            times.sort_unstable();
            assert!(times[500].as_micros() < 20, "{:?} by {pause:?}", times[500]);
        }
    }

    /// A processor that has neither instruction has no monitor, and the test ends here.
    #[test]
    fn a_wait_ends_with_a_write_and_does_not_begin_after_it() {
        let Some(monitor) = Monitor::of_this_processor() else { return };
        let word = AtomicU64::new(0);
        monitor.wait(&word, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    monitor.wait(&word, 0);
                }
                word.store(2, Ordering::Release);
            });
            word.store(1, Ordering::Release);
            while word.load(Ordering::Acquire) == 1 {
                monitor.wait(&word, 1);
            }
        });
    }
}
