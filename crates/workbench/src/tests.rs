use indicatif::ProgressBar;
use miette::{GraphicalReportHandler, GraphicalTheme};
use weir_lab::cpus::{Class, WEIGHT_USUAL};
use weir_lab::scenario::Endpoint;
use weir_lab::scenarios::PROFILES;
use weir_policy::budget::{Layer, shares};

use super::profile::Machine;
use super::runs::run_one;
use super::*;

/// The times, the host and the load of a small experiment, whose guests have this moderation.
macro_rules! small_host {
    ($moderation:literal) => {
        concat!(
            r#"warm_up = "1ms"
run = "5ms"

[topology]
sockets = 1
llcs_per_socket = 1
cores_per_llc = 4
threads_per_core = 1

[[worker]]
cpus = [0]

[guests]
count = 1
cpus = [1, 2, 3]
moderation = ""#,
            $moderation,
            r#""
latency_budget = "250us"

[uplink]
rate = "1Gbit"
delay = "20us"
hold = "0ns"

[[load]]
name = "packets"
from = "uplink"
to = "guests"
traffic = { datagrams = { bytes = 500, arrivals = { poisson = "20kpps" } } }

"#
        )
    };
}
pub(crate) use small_host;

const SMALL: &str = concat!(
    r#"title = "A stream to guests"
profile = "dong-2011"
seeds = [7]
"#,
    small_host!("auto"),
    r#"[[sweep]]
name = "guests"
points = ["1", "3"]
sweep = { "guests.count" = [1, 3] }

[plot]
x = "guests"
y = ["cpu_percent"]
"#
);

fn experiment(text: &str) -> Result<Experiment, LabError> {
    parse(Source { name: "mine.toml", text }, None, None)
}

fn shown(error: LabError) -> String {
    let mut text = String::new();
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::none()).with_width(100);
    handler.render_report(&mut text, &error).unwrap();
    text
}

/// Returns the error for [`SMALL`] with `from` replaced.
fn problem(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    shown(experiment(&SMALL.replace(from, to)).unwrap_err())
}

#[test]
fn a_sweep_makes_a_point_of_each_value() {
    let experiment = experiment(SMALL).unwrap();
    let guests: Vec<_> = experiment.points.iter().map(|(_, it)| it.guests.len()).collect();
    assert_eq!(guests, [1, 3]);
    assert_eq!(experiment.points[1].1.loads.len(), 3);
    assert_eq!(experiment.points[1].1.seed, 7);
    assert_eq!(experiment.points[1].1.guests[2].cpus, [3]);
}

#[test]
fn each_execution_model_has_its_workers() {
    let workers = |keys: &str, count: &str| {
        let text = SMALL.replace("cpus = [0]", &format!("count = {count}\ncpus = [0, 3]"));
        let text = text.replace("[topology]", &format!("{keys}\n[topology]"));
        let text = text.replace("rate = ", "count = 2\nrate = ");
        // The second point has three guests.
        experiment(&text).unwrap().points[1].1.workers.clone()
    };
    let tasklets = workers("execution = \"tasklet\"", "3");
    let cpus: Vec<_> = tasklets.iter().map(|worker| worker.cpus.clone()).collect();
    assert_eq!(cpus, [[0], [3], [0]], "each on one, in turn");
    let threads = workers("execution = \"threads\"", "1");
    let fair = Class::Fair { weight: WEIGHT_USUAL };
    assert_eq!(threads.len(), 5, "three guests and two uplinks");
    assert!(threads.iter().all(|it| it.cpus == [0, 3] && it.class == fair));
    let real_time = workers("execution = \"rt-threads\"", "1");
    assert!(real_time.iter().all(|it| it.class == Class::Realtime { priority: 1 }));
}

#[test]
fn guests_have_uplinks_in_turn() {
    let experiment = experiment(&SMALL.replace("rate = ", "count = 2\nrate = ")).unwrap();
    let loads: Vec<_> = experiment.points[1].1.loads.iter().map(|load| load.from).collect();
    assert_eq!(loads, [Endpoint::Peer(0), Endpoint::Peer(1), Endpoint::Peer(0)]);
}

#[test]
fn a_second_host_is_like_the_first_and_asked_by_number() {
    let two = SMALL
        .replace("from = \"uplink\"", "from = \"guests\"")
        .replace("cpus = [0]", "cpus = []")
        .replace("[guests]", "[realization]\nhosts = 2\n[guests]");
    let experiment = experiment(&two).unwrap();
    let three = &experiment.points[1].1;
    assert_eq!((three.topology.sockets, three.workers.len(), three.uplinks.len()), (2, 2, 2));
    assert_eq!(three.workers[1].cpus, [4, 5, 6, 7]);
    assert_eq!((three.guests.len(), three.guests[3].cpus.clone()), (6, vec![5]));
    let ends: Vec<_> = three.loads.iter().map(|load| (load.from, load.to)).collect();
    use weir_lab::scenario::Endpoint::Guest;
    assert_eq!(ends, [(Guest(0), Guest(3)), (Guest(1), Guest(4)), (Guest(2), Guest(5))]);
}

#[test]
fn a_swept_profile_is_the_machine_of_its_points() {
    let text = SMALL
        .replace("\"guests.count\" = [1, 3]", "\"profile\" = [\"dong-2011\", \"raj-2006-host\"]");
    let experiment = experiment(&text).unwrap();
    let receive = |point: usize| experiment.points[point].1.profile.receive_ns;
    assert_eq!((receive(0), receive(1)), (5_000, 8_000));
    let title = experiment.machine();
    assert!(title.contains("Dong 2011") && title.contains("; Raj 2006, host"), "{title}");
    assert!(experiment.machines[1].fitted().any(|cost| cost.name == "take"));
}

#[test]
fn problems_show_the_line_and_what_was_expected() {
    let problems = [
        problem("count = 1", "number = 1"),
        problem("\"250us\"", "\"250\""),
        problem("hold = \"0ns\"\n", ""),
        problem("\"auto\"", "\"automatic\""),
        problem("\"20kpps\"", "\"0pps\""),
        problem("profile = \"dong-2011\"", "profile = \"dong\""),
        problem("\"guests.count\"", "\"guest.count\""),
        problem("\"guests.count\"", "\"guests.number\""),
        problem("= [1, 3] }", "= [1] }"),
        problem("= [1, 3] }", "= [1, 0] }"),
        problem("x = \"guests\"", "x = \"host\""),
        problem("cpus = [0]", "cpus = [9]"),
        problem("to = \"guests\"", "to = \"guests\"\nflows = 5000"),
        problem("points = [\"1\", \"3\"]", "points = [\"1\", \"1\"]"),
        problem("seeds = [7]", "execution = \"thread\""),
        problem("seeds = [7]", "first_worker = 1"),
        problem("cpus = [0]", "cpus = [0]\ncount = 0"),
        problem("rate = ", "count = 5000\nrate = "),
        problem("to = \"guests\"", "to = \"guests\"\nonly = [2]"),
        problem("[guests]", "[realization]\nworkers = \"own\"\n[guests]"),
        problem("[guests]", "[realization]\nhosts = 3\n[guests]"),
        problem("\"250us\"", "\"250us\"\nhypervisor_poll = \"0ns\""),
        problem("[guests]", "[realization]\nhosts = 2\n[guests]"),
        problem("[guests]", "[realization]\nuplink_apart = true\n[guests]"),
        problem("[guests]", "[realization]\nidentifiers = { count = 0, cpu = 0 }\n[guests]"),
        problem("[guests]", "[realization]\nidentifiers = { count = 8, cpu = 4 }\n[guests]"),
        problem("\"guests.count\" = [1, 3]", "\"profile\" = [\"dong-2011\", \"raj\"]"),
    ];
    insta::assert_snapshot!(problems.join("\n"), @r#"
      x mine.toml: unknown field `number`, expected one of `count`, `cpus`, `moderation`,
      | `latency_budget`, `rx_usecs`, `rx_frames`, `rx_ring`, `poll`, `empty_polls`, `poll_periodic`,
      | `hypervisor_poll`, `tick`, `lro`
        ,-[mine.toml:17:1]
     16 | [guests]
     17 | number = 1
        : ^^^|^^
        :    `-- here
     18 | cpus = [1, 2, 3]
        `----

      x mine.toml: `250` is not a time such as "250us" (ns, us, ms, s)
        ,-[mine.toml:20:18]
     19 | moderation = "auto"
     20 | latency_budget = "250"
        :                  ^^|^^
        :                    `-- here
     21 | 
        `----

      x mine.toml: missing field `hold`
        ,-[mine.toml:22:1]
     21 | 
     22 | [uplink]
        : ^^^^|^^^
        :     `-- here
     23 | rate = "1Gbit"
        `----

      x mine.toml: unknown moderation policy `automatic`; valid names: auto, immediate, backend,
      | frontend, two-layer, aggregate, aggregate-adaptive
        ,-[mine.toml:19:14]
     18 | cpus = [1, 2, 3]
     19 | moderation = "automatic"
        :              ^^^^^|^^^^^
        :                   `-- here
     20 | latency_budget = "250us"
        `----

      x mine.toml: a rate of packets is 1pps to 1000Mpps
        ,-[mine.toml:31:11]
     30 | to = "guests"
     31 | traffic = { datagrams = { bytes = 500, arrivals = { poisson = "0pps" } } }
        :           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        :                                           `-- here
     32 | 
        `----

      x mine.toml: unknown profile `dong`, expected one of dong-2011, guo-2009, raj-2006-device, raj-
      | 2006-host, raj-2006-mailbox, dong-2011-10g, zhang-2010, thakur-2014, nested, big-host, two-
      | cores
       ,-[mine.toml:2:11]
     1 | title = "A stream to guests"
     2 | profile = "dong"
       :           ^^^|^^
       :              `-- here
     3 | seeds = [7]
       `----

      x mine.toml: there is no `guest.count`, expected a key such as "guests.count"
        ,-[mine.toml:33:1]
     32 | 
     33 | [[sweep]]
        : ^^^^|^^^^
        :     `-- here
     34 | name = "guests"
        `----

      x mine.toml: guests 1: unknown field `number`, expected one of `count`, `cpus`, `moderation`,
      | `latency_budget`, `rx_usecs`, `rx_frames`, `rx_ring`, `poll`, `empty_polls`, `poll_periodic`,
      | `hypervisor_poll`, `tick`, `lro`
        ,-[mine.toml:33:1]
     32 | 
     33 | [[sweep]]
        : ^^^^|^^^^
        :     `-- here
     34 | name = "guests"
        `----

      x mine.toml: `guests.count` has 1 values, expected one for each of the 2 `points`
        ,-[mine.toml:33:1]
     32 | 
     33 | [[sweep]]
        : ^^^^|^^^^
        :     `-- here
     34 | name = "guests"
        `----

      x mine.toml: guests 3: `guests.count` is 0, expected 1 to 1024
        ,-[mine.toml:33:1]
     32 | 
     33 | [[sweep]]
        : ^^^^|^^^^
        :     `-- here
     34 | name = "guests"
        `----

      x mine.toml: there is no sweep `host`, expected one of: guests
        ,-[mine.toml:38:1]
     37 | 
     38 | [plot]
        : ^^^|^^
        :    `-- here
     39 | x = "host"
        `----

      x mine.toml: a worker may run on CPU 9, and the host has 4
        ,-[mine.toml:13:1]
     12 | 
     13 | [[worker]]
        : ^^^^^|^^^^
        :      `-- here
     14 | cpus = [9]
        `----

      x mine.toml: there are more than 4096 flows of all guests
        ,-[mine.toml:27:1]
     26 | 
     27 | [[load]]
        : ^^^^|^^^
        :     `-- here
     28 | name = "packets"
        `----

      x mine.toml: guests 1: two points, or two sweeps, have one name
        ,-[mine.toml:33:1]
     32 | 
     33 | [[sweep]]
        : ^^^^|^^^^
        :     `-- here
     34 | name = "guests"
        `----

      x mine.toml: unknown variant `thread`, expected one of `tasklet`, `threads`, `rt-threads`
       ,-[mine.toml:3:13]
     2 | profile = "dong-2011"
     3 | execution = "thread"
       :             ^^^^|^^^
       :                 `-- here
     4 | warm_up = "1ms"
       `----

      x mine.toml: queues start on worker 1, and workers are 0 to 1 exclusive
       ,-[mine.toml:3:16]
     2 | profile = "dong-2011"
     3 | first_worker = 1
       :                |
       :                `-- here
     4 | warm_up = "1ms"
       `----

      x mine.toml: `worker.0.count` is 0, expected 1 to 1024
        ,-[mine.toml:15:9]
     14 | cpus = [0]
     15 | count = 0
        :         |
        :         `-- here
     16 | 
        `----

      x mine.toml: `uplink.count` is 5000, expected 1 to 1024
        ,-[mine.toml:23:9]
     22 | [uplink]
     23 | count = 5000
        :         ^^|^
        :           `-- here
     24 | rate = "1Gbit"
        `----

      x mine.toml: there is no guest 2, expected 1 to 1
        ,-[mine.toml:31:8]
     30 | to = "guests"
     31 | only = [2]
        :        ^|^
        :         `-- here
     32 | traffic = { datagrams = { bytes = 500, arrivals = { poisson = "20kpps" } } }
        `----

      x mine.toml: unknown variant `own`, expected `shared` or `dedicated`
        ,-[mine.toml:17:11]
     16 | [realization]
     17 | workers = "own"
        :           ^^|^^
        :             `-- here
     18 | [guests]
        `----

      x mine.toml: there are 3 hosts, expected 1 or 2
        ,-[mine.toml:17:9]
     16 | [realization]
     17 | hosts = 3
        :         |
        :         `-- here
     18 | [guests]
        `----

      x mine.toml: guest1: `hypervisor_poll_ns` is 0; it must lie between 1 and 3600000000000
        ,-[mine.toml:16:1]
     15 | 
     16 | [guests]
        : ^^^^|^^^
        :     `-- here
     17 | count = 1
        `----

      x mine.toml: two hosts have loads between guests only
        ,-[mine.toml:16:1]
     15 | 
     16 | [realization]
        : ^^^^^^|^^^^^^
        :       `-- here
     17 | hosts = 2
        `----

      x mine.toml: the realization: workers of a host is 1; it must lie between 2 and 1024
        ,-[mine.toml:16:1]
     15 | 
     16 | [realization]
        : ^^^^^^|^^^^^^
        :       `-- here
     17 | uplink_apart = true
        `----

      x mine.toml: the realization: `identifiers.count` is 0; it must lie between 1 and 1024
        ,-[mine.toml:16:1]
     15 | 
     16 | [realization]
        : ^^^^^^|^^^^^^
        :       `-- here
     17 | identifiers = { count = 0, cpu = 0 }
        `----

      x mine.toml: the interrupt controller may run on CPU 4, and the host has 4
        ,-[mine.toml:17:15]
     16 | [realization]
     17 | identifiers = { count = 8, cpu = 4 }
        :               ^^^^^^^^^^^|^^^^^^^^^^
        :                          `-- here
     18 | [guests]
        `----

      x mine.toml: unknown profile `raj`, expected one of dong-2011, guo-2009, raj-2006-device, raj-
      | 2006-host, raj-2006-mailbox, dong-2011-10g, zhang-2010, thakur-2014, nested, big-host, two-
      | cores
        ,-[mine.toml:33:1]
     32 | 
     33 | [[sweep]]
        : ^^^^|^^^^
        :     `-- here
     34 | name = "guests"
        `----
    "#);
}

/// A setting that has no effect is a mistake. A setting that has an effect at one point of a sweep is permitted.
#[test]
fn what_would_come_to_nothing_is_refused() {
    let twins = |keys: &str, realization: &str| {
        let text = SMALL
            .replace("from = \"uplink\"", "from = \"guests\"")
            .replace("cpus = [0]", "count = 2\ncpus = [0, 3]")
            .replace("[guests]", &format!("[realization]\n{realization}\n[guests]"))
            .replace("seeds = [7]", keys);
        shown(experiment(&text).unwrap_err())
    };
    let threads = |key: &str| {
        let text = SMALL.replace("seeds = [7]", "execution = \"threads\"");
        shown(experiment(&text.replace("cpus = [0]", &format!("{key}\ncpus = [0]"))).unwrap_err())
    };
    let between = SMALL.replace("from = \"uplink\"", "from = \"guests\"").replace("1, 3]", "2, 3]");
    let between = between.replace("count = 1", "count = 2");
    let swept = "sweep = { \"guests.count\" = [1, 3] }";
    let again = |key: &str| {
        let other = "name = \"other\"\npoints = [\"1\", \"2\"]\nsweep =";
        let more = format!("{swept}\n\n[[sweep]]\n{other} {{ {key} }}");
        problem(swept, &more)
    };
    let problems = [
        twins("dispatch = \"spread\"", "hosts = 2"),
        twins("first_worker = 0", "hosts = 2"),
        twins("dispatch = \"pack\"", "uplink_apart = true"),
        problem("seeds = [7]", "dispatch = \"spread\""),
        problem("seeds = [7]", "first_worker = 0"),
        problem("seeds = [7]", "seeds = [7, 3, 7]"),
        problem("moderation = \"auto\"", "moderation = \"auto\"\nrx_usecs = \"10us\""),
        problem("moderation = \"auto\"", "moderation = \"frontend\"\nrx_frames = 10"),
        problem("\"250us\"", "\"250us\"\nempty_polls = 10"),
        problem("\"250us\"", "\"250us\"\npoll_periodic = true"),
        problem("\"250us\"", "\"250us\"\nlro = true"),
        threads("priority = 1"),
        threads("count = 2"),
        shown(experiment(&between).unwrap_err()),
        problem(
            "[guests]",
            "[realization]\nguests_poll = true\nidentifiers = { count = 8, cpu = 0 }\n[guests]",
        ),
        problem(
            "[guests]",
            "[realization]\nplacement = { policy = \"none\", look = \"1s\", pin_vcpus = true }\n[guests]",
        ),
        again("\"guests.count\" = [1, 2]"),
        again("guests = [{}, {}]"),
        again("seeds = [[1], [2]]"),
        problem("x = \"guests\"", "x = \"guests\"\nseries = \"guests\""),
    ];
    insta::assert_snapshot!(problems.join("\n"));
    let both = "\"guests.moderation\" = [\"auto\", \"backend\"]";
    let text = SMALL.replace("\"guests.count\" = [1, 3]", both);
    let text = text.replace("\"250us\"", "\"250us\"\nrx_usecs = \"10us\"");
    assert!(experiment(&text).is_ok(), "one of two points makes something of it");
}

#[test]
fn claims_are_about_points_that_there_are() {
    let claim = |is: &str| {
        let claim = format!(
            "{SMALL}\n[[claim]]\nfigure = \"Fig. 1\"\nsource = \"page 1\"\nsays = \"so\"\n\
             used = \"predict\"\ny = \"cpu_percent\"\nis = {is}\n"
        );
        shown(experiment(&claim).unwrap_err())
    };
    let problems = [
        claim("{ value = { at = { guests = \"2\" }, value = 1.0 } }"),
        claim("{ change = { from = { guests = \"1\" }, to = { guests = \"3\" } } }"),
        claim(
            "{ more = { from = { guests = \"1\" }, to = { guests = \"3\" }, \
             than = { from = { guests = \"1\" }, to = { guests = \"9\" } } } }",
        ),
        claim("{ least = { at = {}, points = [\"1\", \"3\"] } }"),
        claim("{ within = { at = {}, point = \"2\", percent = 5.0 } }"),
        claim("{ within = { at = {}, point = \"1\", percent = 100.0 } }"),
        claim("{ least = { at = { guests = \"1\" }, points = [\"1\"] } }"),
        claim(
            "{ change = { from = { guests = \"1\" }, to = { guests = \"3\" }, by = 1.0, percent_max = 5.0 } }",
        ),
    ];
    insta::assert_snapshot!(problems.join("\n"), @r#"
      x mine.toml: there is no point `guests 2`, expected a point of each of: guests
        ,-[mine.toml:48:6]
     47 | y = "cpu_percent"
     48 | is = { value = { at = { guests = "2" }, value = 1.0 } }
        :      ^^^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^^^
        :                               `-- here
        `----

      x mine.toml: expected one of `by`, `percent` and `sign`
        ,-[mine.toml:48:6]
     47 | y = "cpu_percent"
     48 | is = { change = { from = { guests = "1" }, to = { guests = "3" } } }
        :      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        :                                     `-- here
        `----

      x mine.toml: there is no point `guests 9`, expected a point of each of: guests
        ,-[mine.toml:48:6]
     47 | y = "cpu_percent"
     48 | is = { more = { from = { guests = "1" }, to = { guests = "3" }, than = { from = { guests = "1" }, to = { guests = "9" } } } }
        :      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        :                                                                  `-- here
        `----

      x mine.toml: expected some of the points of `x`, not all
        ,-[mine.toml:48:6]
     47 | y = "cpu_percent"
     48 | is = { least = { at = {}, points = ["1", "3"] } }
        :      ^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^
        :                            `-- here
        `----

      x mine.toml: expected `point` to be one of several points of x
        ,-[mine.toml:48:6]
     47 | y = "cpu_percent"
     48 | is = { within = { at = {}, point = "2", percent = 5.0 } }
        :      ^^^^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^^^^
        :                                `-- here
        `----

      x mine.toml: expected `percent` from 0 to less than 100
        ,-[mine.toml:48:6]
     47 | y = "cpu_percent"
     48 | is = { within = { at = {}, point = "1", percent = 100.0 } }
        :      ^^^^^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^^^^^
        :                                 `-- here
        `----

      x mine.toml: `at` has no effect on `x`: all of its points are compared
        ,-[mine.toml:48:6]
     47 | y = "cpu_percent"
     48 | is = { least = { at = { guests = "1" }, points = ["1"] } }
        :      ^^^^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^^^^^
        :                                `-- here
        `----

      x mine.toml: `percent_max` has no effect: it is the most that a `sign` may come to
        ,-[mine.toml:48:6]
     47 | y = "cpu_percent"
     48 | is = { change = { from = { guests = "1" }, to = { guests = "3" }, by = 1.0, percent_max = 5.0 } }
        :      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        :                                                    `-- here
        `----
    "#);
}

#[test]
fn what_cannot_finish_within_bounds_is_refused_before_it_starts() {
    let problems = [
        problem("\"5ms\"", "\"3600s\""),
        problem("seeds = [7]", &format!("seeds = {:?}", (0..501).collect::<Vec<_>>())),
        problem("\"5ms\"", "\"3601s\""),
    ];
    insta::assert_snapshot!(problems.join("\n"));
}

#[test]
fn a_cost_says_where_it_is_from() {
    let (name, text) = PROFILES[0];
    let slice = text.lines().find(|line| line.starts_with("slice")).unwrap();
    let problem = |line: &str| {
        let text = text.replace(slice, line);
        shown(Machine::parse(Source { name, text: &text }).unwrap_err())
    };
    let problems = [
        problem("slice = { value = \"30ms\" }"),
        problem("slice = { value = \"30ms\", source = \"a\", fitted = \"b\" }"),
        problem("slice = { value = \"30\", source = \"a\" }"),
        problem("slices = { value = \"30ms\", source = \"a\" }"),
        problem(""),
    ];
    insta::assert_snapshot!(problems.join("\n"), @r#"
      x dong-2011: expected one of `source`, `fitted` and `assumed`: where the number is from
       ,-[dong-2011:5:9]
     4 | # The CPUs and their scheduler.
     5 | slice = { value = "30ms" }
       :         ^^^^^^^^^|^^^^^^^^
       :                  `-- here
     6 | granularity = { value = "0ns", assumed = "Xen's credit scheduler lets who wakes up run first (boost)" }
       `----

      x dong-2011: expected one of `source`, `fitted` and `assumed`: where the number is from
       ,-[dong-2011:5:9]
     4 | # The CPUs and their scheduler.
     5 | slice = { value = "30ms", source = "a", fitted = "b" }
       :         ^^^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^^^
       :                                `-- here
     6 | granularity = { value = "0ns", assumed = "Xen's credit scheduler lets who wakes up run first (boost)" }
       `----

      x dong-2011: `30` is not a time such as "250us" (ns, us, ms, s)
       ,-[dong-2011:5:19]
     4 | # The CPUs and their scheduler.
     5 | slice = { value = "30", source = "a" }
       :                   ^^|^
       :                     `-- here
     6 | granularity = { value = "0ns", assumed = "Xen's credit scheduler lets who wakes up run first (boost)" }
       `----

      x dong-2011: unknown cost `slices`, expected one of slice, granularity, switch, llc_refill,
      | socket_refill, cold_refill, footprint, smt, wakeup_latency, wakeup_latency_p90,
      | wakeup_latency_p99, timer_late, timer_late_p90, timer_late_p99, warm, tick, tick_every, sleep,
      | settle, timer_set, timer_fired, poll, look, deadline, burst, take, classify, place,
      | copy_per_byte, publish, call, call_busy, uplink_interrupt, uplink_take, uplink_place,
      | timer_missed, interrupt, interrupt_busy, guest_timer, poll_end, poll_end_busy, receive,
      | receive_per_byte, send, send_per_byte, kick, kick_busy, far_cache, far_socket, signal,
      | signal_far, hypervisor_timer, merge
       ,-[dong-2011:5:1]
     4 | # The CPUs and their scheduler.
     5 | slices = { value = "30ms", source = "a" }
       : ^^^|^^
       :    `-- here
     6 | granularity = { value = "0ns", assumed = "Xen's credit scheduler lets who wakes up run first (boost)" }
       `----

      x dong-2011: `slice` is missing
       ,-[dong-2011:3:1]
     2 | 
     3 | [costs]
       : ^^^|^^^
       :    `-- here
     4 | # The CPUs and their scheduler.
       `----
    "#);
}

fn output(name: &str, seed: u64) -> String {
    let name = Some(name.to_owned());
    let args = LabRunArgs {
        name,
        all: false,
        seed: Some(seed),
        json: true,
        sensitivity: false,
        measured: false,
        profile: None,
    };
    let mut out = Vec::new();
    run(&LabCommand::Run(args), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_seed_gives_the_same_bytes_again_and_another_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, SMALL).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(output(path, 1), output(path, 1));
    let events = |seed| {
        let value: serde_json::Value = serde_json::from_str(&output(path, seed)).unwrap();
        value[0]["events"].as_u64().unwrap()
    };
    assert_ne!(events(1), events(2));
}

#[test]
fn a_claim_that_hangs_on_the_seed_says_so() {
    let claim = "[[claim]]\nfigure = \"Fig. 1\"\nsource = \"page 1\"\nsays = \"so much\"\nused = \"predict\"\n\
                 y = \"packets_per_s\"\nreason = \"chance\"\n";
    let text =
        SMALL.replace("seeds = [7]", "paper = \"Who 2099, Fig. 1\"\nseeds = [1, 2, 3, 4, 5, 6]");
    let judged = |value: f64| {
        let is = format!("is = {{ value = {{ at = {{ guests = \"1\" }}, value = {value:.1} }} }}");
        let experiment = experiment(&format!("{text}\n{claim}{is}\n")).unwrap();
        let outcome = run_one(&experiment, &ProgressBar::hidden()).unwrap();
        let starts: Vec<_> = outcome.points.iter().map(|point| point.starts).collect();
        (outcome.claims[0].words(), starts, outcome.starts_in_words())
    };
    let known = |words: &str| (words.to_owned(), vec![6, 6], "6".to_owned());
    assert_eq!(judged(2.0), known("direction only"));
    // 100 arrivals, plus or minus 10: the mean of six is known within 4, and that of a hundred within 1.
    assert_eq!(judged(20_000.0), known("reproduced"));
    let (words, starts, in_words) = judged(22_000.0);
    assert_eq!(words, "reproduced");
    assert!((12..=100).contains(&starts[0]) && starts[1] == 6, "{starts:?}");
    assert_eq!(in_words, format!("6 to {}", starts[0]));
    let (words, starts, _) = judged(20_000.0 / 0.85);
    assert!(words.ends_with(", within the seeds' spread"), "{words}");
    assert_eq!(starts, [100, 6]);
}

/// The claims of `nested` about three layers agree with the formula for its costs.
#[test]
fn the_claims_of_nested_are_the_splits_of_least_cost_by_the_formula() {
    let (name, text) = *EXPERIMENTS.iter().find(|it| it.0 == "nested").unwrap();
    let experiment = parse(Source { name, text }, None, None).unwrap();
    for claim in &experiment.file.claims {
        let file::Statement::Least { at, points } = &claim.is else { panic!("{}", claim.says) };
        let here = experiment.points.iter().filter(|it| it.0["guests"] == at["guests"]);
        let mut costs: Vec<_> = here
            .map(|(at, scenario)| {
                let (guests, costs) = (&scenario.guests, scenario.profile);
                let places = guests.len() as u32;
                let layer = |cost_ns: u64, places| Layer { cost_ns: cost_ns as f64, places };
                let layers = [
                    layer(costs.uplink_interrupt_ns, 1),
                    layer(costs.hypervisor_timer_ns, places),
                    layer(costs.guest_timer_ns, places),
                ];
                let held_ns = [
                    scenario.uplinks[0].hold_ns,
                    guests[0].hypervisor_poll_ns.unwrap(),
                    guests[0].poll.unwrap().interval_ns,
                ];
                let cost = |times_ns: [u64; 3]| -> f64 {
                    let each = layers.iter().zip(times_ns);
                    each.map(|(it, ns)| it.cost_ns * f64::from(it.places) / ns as f64).sum()
                };
                assert!(cost(held_ns) >= cost(shares(held_ns.iter().sum(), layers)));
                (cost(held_ns), at["split"].as_str())
            })
            .collect();
        costs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let order: Vec<_> = costs.iter().take(points.len()).map(|it| it.1).collect();
        assert_eq!(order, *points, "{}", claim.says);
    }
}

#[test]
fn an_unknown_experiment_is_named() {
    let args = LabRunArgs {
        name: Some("fig99".into()),
        all: false,
        seed: None,
        json: false,
        sensitivity: false,
        measured: false,
        profile: None,
    };
    let error = run(&LabCommand::Run(args), &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "there is no experiment called `fig99`");
}
