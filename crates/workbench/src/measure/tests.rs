use weir_lab::scenarios::{EXPERIMENTS, REALITY};

use super::super::error::Source;
use super::super::runs::parse;
use super::*;

fn experiment(text: &str) -> Experiment {
    parse(Source { name: "mine.toml", text }, None, None).unwrap()
}

fn measured(text: &str) -> (Experiment, Result<Refused, LabError>) {
    let mut experiment = experiment(text);
    // Two rounds: on a busy machine one may have no packets.
    let result = measure(&mut experiment, 2, &progress(0), &AtomicBool::new(false));
    (experiment, result)
}

/// The experiment that comes with weir, on this process's CPUs, and short.
fn here(text: &str) -> String {
    let usable = usable_cpus();
    let (first, last) = (usable[0], usable[usable.len() - 1]);
    let all = format!("cores_per_llc = {}", last + 1);
    text.replace("cores_per_llc = 2", &all)
        .replace("cpus = [1]", &format!("cpus = [{last}]"))
        .replace("cpus = [0]", &format!("cpus = [{first}]"))
        .replace("warm_up = \"150ms\"", "warm_up = \"50ms\"")
        .replace("run = \"500ms\"", "run = \"100ms\"")
}

#[test]
fn all_that_comes_with_weir_to_be_measured_can_be_on_two_cpus() {
    let experiment = parse(Source { name: REALITY.0, text: REALITY.1 }, None, None).unwrap();
    assert!(experiment.points.len() >= 8);
    for (at, scenario) in &experiment.points {
        let setting = Setting::of(scenario, &[0, 1]).unwrap_or_else(|why| panic!("{at:?}: {why}"));
        assert_eq!(2 * setting.flows.len(), scenario.guests.len());
    }
}

#[test]
fn what_is_measured_stands_beside_what_is_simulated_point_by_point() {
    let (experiment, refused) = measured(&here(REALITY.1));
    assert_eq!(refused.unwrap(), []);
    let figures = &experiment.file.plot.y;
    let all = &experiment.file.measured;
    assert_eq!(all.len(), figures.len() * experiment.points.len());
    for figure in figures {
        let measured = experiment.points.iter().map(|(at, _)| {
            let of = |it: &&MeasuredFile| it.at == *at && it.y == *figure;
            let measured = all.iter().find(of).unwrap_or_else(|| panic!("{at:?} {figure:?}"));
            assert!(measured.mean >= 0.0 && measured.mean.is_finite(), "{measured:?}");
            measured.mean
        });
        // At one setting the figure may be zero, if other threads use the CPUs.
        assert!(measured.fold(0.0, f64::max) > 0.0, "{figure:?} of {all:?}");
    }
}

#[test]
fn what_cannot_be_had_here_is_refused_and_says_why() {
    // Streams at all points would exceed the bound of the length.
    let text = REALITY.1.replace("run = \"500ms\"", "run = \"50ms\"");
    let why = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let experiment = experiment(&text.replace(from, to));
        Setting::of(&experiment.points[0].1, &[0, 1]).unwrap_err().to_string()
    };
    // The datagrams of the first point.
    let datagrams = "{ datagrams = { bytes = 64, arrivals = { poisson = \"10kpps\" } } }";
    let says = [
        ("guests_are_threads = true\n", "", "guests_are_threads"),
        ("timers_ahead = true\n", "workers = \"dedicated\"\n", "its worker looks on"),
        ("timers_ahead = true\n", "", "`timers_ahead`"),
        ("cpus = [1]", "cpus = []", "the worker is not pinned to one CPU"),
        ("cpus = [1]", "cpus = [0, 1]", "the worker is not pinned to one CPU"),
        ("[[worker]]\ncpus = [1]", "[[worker]]\ncount = 2\ncpus = [1]", "2 workers"),
        ("latency_budget = \"250us\"", "latency_budget = \"250us\"\nrx_ring = 512", "512 and 256"),
        ("[[1], [1], [1]", "[[1, 2], [1], [1]", "belongs to two flows"),
        (datagrams, "{ datagrams = { bytes = 40, arrivals = { regular = \"10kpps\" } } }", "58 to"),
        (
            datagrams,
            "{ requests = { clients = 2, request = 64, answer = 58, think = \"0ns\", serve = \"0ns\" } }",
            "one client",
        ),
        (datagrams, "{ stream = { segment = 9000, window = 16 } }", "1514"),
    ];
    for (from, to, expected) in says {
        let said = why(from, to);
        assert!(said.contains(expected) && !said.contains('\n'), "{to}: {said}");
    }
    let stream = "{ stream = { segment = 1514, window = 16 } }";
    let merging = text.replace(datagrams, stream);
    let budget = "latency_budget = \"250us\"";
    let merging = merging.replace(budget, &format!("{budget}\nlro = true"));
    let said = Setting::of(&experiment(&merging).points[0].1, &[0, 1]).unwrap_err().to_string();
    assert!(said.contains("merge segments"), "{said}");
    let experiment = experiment(REALITY.1);
    let said = Setting::of(&experiment.points[0].1, &[0]).unwrap_err().to_string();
    assert_eq!(said, "it needs CPU 1, and this process may use 0");
}

#[test]
fn no_experiment_of_a_paper_is_taken_for_one_that_can_be_measured() {
    for (name, text) in EXPERIMENTS {
        let (experiment, result) = measured(text);
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with("mine.toml cannot be measured here: "), "{name}: {error}");
        assert!(!error.contains('\n'), "{name}: {error}");
        assert!(experiment.file.measured.iter().all(|it| !it.source.contains("rounds")));
    }
}
