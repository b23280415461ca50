//! `weir lab soak`: simulates seeds until one breaks an invariant or the time is over.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use weir_bench::rig;
use weir_lab::soak::{Failure, Played, play};
use weir_text::count;

use super::LabError;
use crate::args::LabSoakArgs;

/// Upper bound of a first seed from the clock. Such a seed is short to type.
const SEEDS: u64 = 1_000_000_000;

/// Runs `weir lab soak`.
///
/// # Errors
/// [`LabError::Broken`], after the details of the seed have been printed.
pub fn run(args: &LabSoakArgs, out: &mut dyn Write) -> Result<(), LabError> {
    if let Some(seed) = args.seed {
        let Played { events, steps } = play(seed).or_else(|failure| broken(&failure, out))?;
        writeln!(out, "seed {seed}: {events} events and {steps} steps, and every invariant held")?;
        return Ok(());
    }
    let stop = rig::catch_signals()?;
    let by_clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    let first = args.from.unwrap_or(by_clock % SEEDS);
    soak(first, args.seconds.map(Duration::from_secs), &stop, out)
}

fn soak(
    first: u64,
    time: Option<Duration>,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<(), LabError> {
    let start = Instant::now();
    // The progress is on standard error, and only on a terminal.
    let bar = ProgressBar::no_length();
    let style = ProgressStyle::with_template("{spinner} {elapsed} {pos} have held, now seed {msg}");
    bar.set_style(style.expect("a constant template that is valid"));
    let (mut seeds, mut events, mut steps) = (0, 0, 0);
    let ends = |seeds| {
        let over = time.is_some_and(|time| start.elapsed() >= time);
        over || stop.load(Ordering::Relaxed) || seeds == u64::MAX
    };
    while !ends(seeds) {
        let seed = first.wrapping_add(seeds);
        let left = time.map(|time| time.saturating_sub(start.elapsed()).as_secs());
        let left = left.map(|left| format!(", {left} s left")).unwrap_or_default();
        bar.set_message(format!("{seed}{left}"));
        let played = play(seed).or_else(|failure| {
            bar.finish_and_clear();
            broken(&failure, out)
        })?;
        (events, steps) = (events + played.events, steps + played.steps);
        seeds += 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs();
    writeln!(
        out,
        "{} from {first} on, {events} events and {steps} steps in {seconds} s: every invariant held",
        count(usize::try_from(seeds).unwrap_or(usize::MAX), "seed"),
    )?;
    Ok(())
}

fn broken(failure: &Failure, out: &mut dyn Write) -> Result<Played, LabError> {
    writeln!(out, "{failure}")?;
    Err(LabError::Broken { seed: failure.seed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(run: impl FnOnce(&mut Vec<u8>) -> Result<(), LabError>) -> String {
        let mut out = Vec::new();
        run(&mut out).unwrap_or_else(|error| panic!("{error}"));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_seed_alone_prints_the_same_each_time() {
        let args = LabSoakArgs { seconds: None, from: None, seed: Some(3) };
        let first = printed(|out| run(&args, out));
        assert!(first.starts_with("seed 3: ") && first.contains("every invariant held"), "{first}");
        assert_eq!(first, printed(|out| run(&args, out)));
    }

    #[test]
    fn it_ends_with_its_time_or_when_it_is_told_to_and_sums_up() {
        let (go, end) = (AtomicBool::new(false), AtomicBool::new(true));
        let text = printed(|out| soak(7, Some(Duration::from_millis(1)), &go, out));
        assert!(text.contains("from 7 on"), "{text}");
        let text = printed(|out| soak(7, None, &end, out));
        assert!(text.starts_with("0 seeds from 7 on, 0 events"), "{text}");
    }

    #[test]
    fn what_broke_is_printed_before_the_error_says_how_to_play_it_again() {
        use weir_lab::host::Error;
        use weir_lab::soak::{Broken, Case};

        let (case, error) = (Box::new(Case::draw(5)), Error::TooLong { events: 9 });
        let broken_host = Broken::Host { shrunk: error.clone(), error, case };
        let failure = Failure { seed: 5, broken: broken_host, runs: 12 };
        let mut out = Vec::new();
        let error = broken(&failure, &mut out).unwrap_err();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("seed 5: the simulation has not ended after 9 events"), "{text}");
        assert!(text.contains("shrunk in 12 runs to"), "{text}");
        let help = miette::Diagnostic::help(&error).map(|help| help.to_string());
        assert_eq!(help.as_deref(), Some("`weir lab soak --seed 5` plays it again"));
    }
}
