use miette::{GraphicalReportHandler, GraphicalTheme};
use weir_config::{Config, Defaults, Execution, Realization};
use weir_lab::cpus::Class;
use weir_lab::scenario::Scenario;
use weir_policy::dispatch::Aim;
use weir_policy::placement::Policy;
use weir_topology::testing;

use super::file::HostCpus;
use super::*;

/// Four guests that send to each other. A frame costs a worker about 22 us.
const SMALL: &str = r#"title = "Four that send to each other"
profile = "slow"
start = "1ms"
warm_up = "200ms"
run = "40ms"

[topology]
sockets = 1
llcs_per_socket = 2
cores_per_llc = 3
threads_per_core = 1

[limits]
execution = ["tasklet"]
realization = ["shared"]
placement = ["off"]

[uplink.lan]
rate = "1Gbit"
interface = "eth0"

[group.web]
count = 4
p99 = "2ms"

[[group.web.load]]
to = "web"
traffic = { datagrams = { bytes = 200, arrivals = { poisson = "8kpps" } } }
"#;

/// The CPUs in that text.
const TOPOLOGY: &str =
    "[topology]\nsockets = 1\nllcs_per_socket = 2\ncores_per_llc = 3\nthreads_per_core = 1\n";

/// Returns a machine of weir's on which a frame costs a worker 20 us.
fn slow() -> Machine {
    let (name, text) = PROFILES.iter().find(|(name, _)| *name == "dong-2011").unwrap();
    let mut machine = Machine::parse(Source { name, text }).unwrap();
    machine.title = "slow".into();
    machine.profile.take_ns = 20_000;
    machine
}

fn parse(text: &str) -> Result<Host, LabError> {
    Host::parse(Source { name: "mine.toml", text }, None, |named| Ok((named == "slow").then(slow)))
}

fn planned(text: &str) -> Plan {
    let host = parse(text).unwrap();
    plan(&host, Candidates::of(&host), &ProgressBar::hidden()).unwrap()
}

fn shown(error: &LabError) -> String {
    let mut text = String::new();
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::none()).with_width(100);
    handler.render_report(&mut text, error).unwrap();
    text
}

/// Returns [`SMALL`] with `from` replaced.
fn with(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replace(from, to)
}

fn problem(from: &str, to: &str) -> String {
    shown(&parse(&with(from, to)).unwrap_err())
}

fn defaults() -> Defaults {
    Defaults::of_user(true, None).unwrap()
}

#[test]
fn a_plan_says_what_to_do_why_nothing_else_and_how() {
    let all = with(
        "realization = [\"shared\"]\nplacement = [\"off\"]",
        "placement = [\"off\", \"static\"]",
    )
    .replace("execution = [\"tasklet\"]\n", "");
    let plan = planned(&all);
    insta::assert_snapshot!(plan, @r#"
    mine.toml: Four that send to each other
    machine: slow; seeds 1; 1329051 events

    RECOMMENDED
    execution    tasklet
    realization  adaptive
    workers      1, where the kernel puts them
    placement    off
    CPUs         0.76 for weir, 0.41 for guests

    GROUP  VMS  MBIT/S  PACKETS/S   LOST     P99  TARGET  LATE CALLS  GUEST CPUS
    web      4    53.5      33425  0.0 %  413 us  2.0 ms      11.3 %        0.41

    WORKERS  EXECUTION   REALIZATION  PLACEMENT  WEIR CPUS  GUEST CPUS  WORST P99  REJECTED, SINCE
          1  tasklet     adaptive     static          0.76        0.41     413 us  as much CPU and as many workers, and further from the defaults
          2  tasklet     adaptive     off             0.76        0.41     413 us  as much CPU, and 1 worker more
          2  tasklet     adaptive     static          0.76        0.41     413 us  as much CPU, and 1 worker more
          2  tasklet     shared       off             0.79        0.40     316 us  as much CPU, and 1 worker more
          2  tasklet     shared       static          0.79        0.40     311 us  0.02 CPUs more
          5  rt-threads  -            static          0.83        0.48     292 us  0.14 CPUs more
          5  rt-threads  -            off             0.85        0.47     292 us  0.15 CPUs more
          5  threads     -            static          0.83        0.50     292 us  0.16 CPUs more
          5  threads     -            off             0.85        0.49     291 us  0.17 CPUs more
          1  tasklet     dedicated    off             1.00        0.38     350 us  0.21 CPUs more
          1  tasklet     dedicated    static          1.00        0.38     350 us  0.21 CPUs more
          2  tasklet     dedicated    static          2.00        0.35     276 us  1.18 CPUs more
          2  tasklet     dedicated    off             2.00        0.35     277 us  1.18 CPUs more

    not played: 3 to 5 workers, since the work is 0.8 CPUs, even with a wake-up and an interrupt for each packet, and for twice of that all are played
    not played: 1 worker, shared, since it is the same as adaptive

    weir.toml:

    [switch]
    execution = "tasklet"
    realization = "adaptive"
    workers = 1

    [uplink.lan]
    kind = "af_packet"
    name = "eth0"

    [vif.web-1]
    latency_budget = "250us"
    moderation = "auto"

    [vif.web-2]
    latency_budget = "250us"
    moderation = "auto"

    [vif.web-3]
    latency_budget = "250us"
    moderation = "auto"

    [vif.web-4]
    latency_budget = "250us"
    moderation = "auto"
    "#);
    let again = planned(&all);
    assert_eq!(plan.to_string(), again.to_string());
    let json = |plan| serde_json::to_string(plan).unwrap();
    assert_eq!(json(&plan), json(&again));
}

#[test]
fn what_is_printed_is_a_configuration_that_says_the_same() {
    let file = with(
        "realization = [\"shared\"]\nplacement = [\"off\"]",
        "placement = [\"static\"]\npin_vcpus = true",
    );
    let file =
        file.replace("p99 = \"2ms\"", "latency_budget = \"150us\"\nmoderation = \"backend\"");
    let host = parse(&file).unwrap();
    for candidate in Candidates::of(&host).first {
        let text = output::weir_toml(&host, &candidate);
        let config = Config::from_toml("weir.toml", &text, &defaults()).unwrap();
        assert_eq!(config.switch.execution, candidate.execution);
        assert_eq!(Some(config.switch.realization), candidate.realization);
        assert_eq!(config.switch.placement.mode, PlacementMode::Static);
        assert!(config.switch.placement.pin_vcpus);
        assert_eq!(config.uplinks[0].interface.as_str(), "eth0");
        assert_eq!(config.vifs.len(), 4);
        for vif in &config.vifs {
            assert_eq!(config.latency_budget(vif).ns(), 150_000);
        }
    }
    let threads = parse(&file.replace("\"tasklet\"", "\"threads\", \"rt-threads\"")).unwrap();
    for candidate in Candidates::of(&threads).first {
        let text = output::weir_toml(&threads, &candidate);
        let config = Config::from_toml("weir.toml", &text, &defaults()).unwrap();
        assert_eq!(config.switch.execution, candidate.execution);
    }
}

#[test]
fn twice_the_load_gets_more_workers() {
    let once = planned(SMALL);
    let twice = planned(&with("8kpps", "16kpps"));
    assert!(once.good && twice.good);
    assert_eq!(once.best.workers, 1);
    assert!(twice.best.workers > 1, "{twice}");
}

#[test]
fn a_tighter_p99_rejects_what_was_chosen_before() {
    // Frames wait for a worker that is almost always busy.
    let host = |p99: &str| {
        planned(&with("8kpps", "10kpps").replace("p99 = \"2ms\"", &format!("p99 = \"{p99}\"")))
    };
    let loose = host("20ms");
    assert_eq!(loose.best.workers, 1, "{loose}");
    let one_us = loose.best.p99_us().unwrap();
    let more = loose.rejected.iter().filter_map(output::Alternative::p99_us);
    let more_us = more.fold(f64::INFINITY, f64::min);
    let between_us = f64::midpoint(one_us, more_us).round();
    assert!(more_us < between_us && between_us < one_us, "{loose}");
    let tight = host(&format!("{between_us}us"));
    assert!(tight.good && tight.best.workers > 1, "{tight}");
    let one = tight.rejected.iter().find(|it| it.workers == 1).unwrap();
    assert!(one.why_not[0].contains("over the target"), "{:?}", one.why_not);
}

#[test]
fn a_group_without_a_target_keeps_its_budget() {
    let plan = planned(&with("p99 = \"2ms\"", "latency_budget = \"100us\""));
    assert!(plan.good && plan.best.workers > 1, "{plan}");
    let one = plan.rejected.iter().find(|it| it.workers == 1).unwrap();
    assert!(one.why_not[0].contains("later than 100us"), "{:?}", one.why_not);
    let in_time = with("p99 = \"2ms\"", "latency_budget = \"50ms\"\nmoderation = \"immediate\"");
    assert_eq!(planned(&in_time).best.workers, 1);
}

#[test]
fn what_nothing_can_do_is_said_with_the_nearest() {
    let plan = planned(&with("p99 = \"2ms\"", "p99 = \"1us\""));
    assert!(!plan.good && plan.weir_toml.is_none());
    assert!(plan.best.why_not[0].contains("over the target 1 us"), "{plan}");
    // The nearest plan has the least p99.
    let p99 = |it: &output::Alternative| it.p99_us().unwrap();
    assert!(plan.rejected.iter().all(|it| p99(it) >= p99(&plan.best)), "{plan}");
    let lossy = planned(&with("[limits]", "[limits]\ncpus = 1").replace("8kpps", "16kpps"));
    assert!(lossy.best.why_not[0].starts_with("web loses "), "{lossy}");
}

#[test]
fn streams_and_requests_have_what_they_need_at_least() {
    let stream = |at_least: &str| {
        let load = format!("to = \"uplink\"\nat_least = \"{at_least}\"");
        let text = with("to = \"web\"", &load).replace(
            "datagrams = { bytes = 200, arrivals = { poisson = \"8kpps\" } }",
            "stream = { segment = 16000, window = 32 }",
        );
        planned(&text)
    };
    assert!(stream("50Mbit").good);
    // All four guests share a link of 1 Gbit/s.
    let much = stream("500Mbit");
    assert!(!much.good && much.best.why_not[0].contains("less than it needs"), "{much}");
}

#[test]
fn settings_that_cannot_be_best_are_not_played() {
    let open =
        with("execution = [\"tasklet\"]\nrealization = [\"shared\"]\nplacement = [\"off\"]\n", "");
    let host = parse(&open).unwrap();
    let Candidates { first, dynamic, .. } = Candidates::of(&host);
    assert!(dynamic && first.iter().all(|it| it.placement != PlacementMode::Dynamic));
    // Five ports need five threads.
    let threads = first.iter().filter(|it| it.execution != Execution::Tasklet);
    assert!(threads.clone().count() > 0 && threads.clone().all(|it| it.workers == 5));
    // A single worker is never both adaptive and shared.
    let one = first.iter().filter(|it| it.workers == 1);
    assert!(one.clone().all(|it| it.realization != Some(Realization::Shared)));
    let one_cache = parse(&open.replace("llcs_per_socket = 2", "llcs_per_socket = 1")).unwrap();
    let candidates = Candidates::of(&one_cache);
    assert!(!candidates.dynamic);
    // Three workers on three cores would leave no core for guests.
    let placed = |it: &Candidate| it.placement != PlacementMode::Off;
    assert!(candidates.first.iter().filter(|it| placed(it)).all(|it| it.workers < 3));
    let busy = Candidates::of(&parse(&open.replace("8kpps", "32kpps")).unwrap());
    assert!(busy.first.iter().all(|it| it.workers > 2));
    let why: Vec<_> = busy.skipped.iter().map(|it| it.to_owned()).collect();
    assert!(why.iter().any(|it| it.what == "1 to 2 workers"), "{why:?}");
    // Only some of the large numbers of workers are simulated.
    let many =
        open.replace("cores_per_llc = 3", "cores_per_llc = 16").replace("count = 4", "count = 20");
    let many = Candidates::of(&parse(&many).unwrap());
    let mut workers: Vec<_> = many.first.iter().map(|it| it.workers).collect();
    workers.dedup();
    assert_eq!(workers, [4, 6, 8, 21]);
    assert!(many.skipped.iter().any(|it| it.what == "5, 7 workers"), "{:?}", many.skipped);
}

#[test]
fn a_candidate_is_played_as_the_switch_realizes_it() {
    let host = parse(SMALL).unwrap();
    let scenario = |execution, realization, workers, placement| {
        let pin_vcpus = false;
        Candidate { execution, realization, workers, placement, pin_vcpus }.scenario(&host.scenario)
    };
    let tasklets = |realization, workers| {
        scenario(Execution::Tasklet, Some(realization), workers, PlacementMode::Off)
    };
    // Three cases: as few workers as suffice, with all queues at the first; all queues spread; and queues that stay
    // with the only worker.
    let moves = |it: &Scenario| (it.dispatch, it.first_worker, it.realization.dedicated);
    assert_eq!(moves(&tasklets(Realization::Adaptive, 3)), (Some(Aim::Pack), Some(0), false));
    assert_eq!(moves(&tasklets(Realization::Shared, 3)), (Some(Aim::Spread), None, false));
    assert_eq!(moves(&tasklets(Realization::Dedicated, 3)), (Some(Aim::Spread), None, true));
    assert_eq!(moves(&tasklets(Realization::Adaptive, 1)), (None, None, false));
    let threads = scenario(Execution::Threads, None, 5, PlacementMode::Off);
    let real_time = scenario(Execution::RtThreads, None, 5, PlacementMode::Static);
    assert_eq!((threads.workers.len(), moves(&threads)), (5, (None, None, false)));
    assert!(threads.workers.iter().all(|it| matches!(it.class, Class::Fair { .. })));
    assert!(real_time.workers.iter().all(|it| matches!(it.class, Class::Realtime { priority: 1 })));
    assert_eq!(threads.realization.placement, None);
    assert_eq!(real_time.realization.placement.unwrap().policy, Policy::Static);
    // The placer has run before measurements begin.
    assert!(real_time.warm_up_ns > real_time.realization.placement.unwrap().look_ns);
}

#[test]
fn the_dynamic_placement_is_played_for_the_best_of_the_others() {
    let text = with("placement = [\"off\"]", "placement = [\"off\", \"dynamic\"]");
    let plan = planned(&text.replace("8kpps", "100pps"));
    let dynamic: Vec<_> =
        plan.rejected.iter().filter(|it| it.placement == PlacementMode::Dynamic).collect();
    assert_eq!(dynamic.len(), 1, "{plan}");
    assert_eq!(dynamic[0].workers, plan.best.workers);
}

#[test]
fn groups_are_told_apart() {
    let two = format!(
        "{SMALL}\n[group.db]\ncpus = [5]\nbusy_vcpus = 1\nlatency_budget = \"50us\"\np99 = \"300us\"\n\
         [[group.db.load]]\nfrom = \"web\"\n\
         traffic = {{ datagrams = {{ bytes = 64, arrivals = {{ regular = \"1kpps\" }} }} }}\n"
    );
    let host = parse(&two).unwrap();
    let names: Vec<_> = host.scenario.guests.iter().map(|guest| guest.name.as_str()).collect();
    assert_eq!(names, ["db-1", "web-1", "web-2", "web-3", "web-4"]);
    assert_eq!(host.scenario.guests[0].calls.latency_budget_ns, 50_000);
    assert_eq!(host.scenario.guests[1].calls.latency_budget_ns, 250_000);
    assert_eq!((host.scenario.rivals.len(), host.scenario.rivals[0].cpus.clone()), (1, vec![5]));
    let json = serde_json::to_value(planned(&two)).unwrap();
    let groups = &json["best"]["groups"];
    assert_eq!((groups[0]["name"].as_str(), groups[0]["vms"].as_u64()), (Some("db"), Some(1)));
    let packets = groups[0]["packets_per_s"].as_f64().unwrap();
    assert!((900.0..1_100.0).contains(&packets), "{packets}");
    assert_eq!(groups[0]["p99_target_us"].as_f64(), Some(300.0));
}

#[test]
fn this_machine_has_its_own_numbers_of_cpus() {
    let read = |fixture| {
        let dir = tempfile::tempdir().unwrap();
        testing::expand(fixture, dir.path()).unwrap();
        HostCpus::regular(&weir_topology::Topology::read(dir.path()).unwrap())
    };
    let Ok(two) = read(testing::TWO_SOCKETS_SMT) else { panic!("it is regular") };
    let it = two.topology;
    let shape = (it.sockets, it.llcs_per_socket, it.cores_per_llc, it.threads_per_core);
    assert_eq!(shape, (2, 1, 8, 2));
    for cpu in 0..32 {
        assert_eq!(two.cpu(two.number(cpu)), Some(cpu));
    }
    // Siblings are adjacent only in the lab's numbers.
    assert!(two.number(1) > two.number(0) + 1);
    assert_eq!(two.cpu(32), None);
    let Err(hybrid) = read(testing::HYBRID) else { panic!("it has two kinds of cores") };
    assert!(hybrid.message.contains("two kinds of cores"), "{}", hybrid.message);
}

#[test]
fn problems_show_the_line_and_what_was_expected() {
    let load = "traffic = { datagrams = { bytes = 200, arrivals = { poisson = \"8kpps\" } } }";
    let problems = [
        problem("count = 4", "number = 4"),
        problem("profile = \"slow\"", "profile = \"fast\""),
        problem(TOPOLOGY, ""),
        shown(&parse(&format!("topology = \"that\"\n{}", with(TOPOLOGY, ""))).unwrap_err()),
        problem("sockets = 1", "sockets = 0"),
        problem("count = 4", "count = 0"),
        problem("count = 4", "count = 4\ncpus = [6]"),
        problem("count = 4", "count = 4\nlatency_budget = \"2s\""),
        problem("count = 4", "count = 4\nbusy_vcpus = 1000"),
        problem("count = 4", "count = 4\nrx_ring = 1"),
        problem("p99 = \"2ms\"", "p99 = \"2\""),
        problem("to = \"web\"", "to = \"db\""),
        problem("to = \"web\"", "to = \"web\"\nfrom = \"uplink\""),
        problem("count = 4\n", ""),
        problem("8kpps", "8000"),
        problem(load, &format!("at_least = \"1Gbit\"\n{load}")),
        problem("to = \"web\"", "to = \"web\"\nflows = 5000"),
        shown(
            &parse(
                &with("[uplink.lan]\nrate = \"1Gbit\"\ninterface = \"eth0\"", "")
                    .replace("to = \"web\"", "to = \"uplink\""),
            )
            .unwrap_err(),
        ),
        problem("group.web", "group.uplink"),
        problem("group.web", "group.Web"),
        problem("group.web", "group.\"web.a\""),
        problem("group.web", "group.a-name-that-is-as-long-as-it-may-b"),
        problem("uplink.lan", "uplink.web-3"),
        problem(
            "[uplink.lan]",
            "[uplink.wan]\nrate = \"1Gbit\"\ninterface = \"eth0\"\n[uplink.lan]",
        ),
        problem("\"eth0\"", "\"an-interface-of-linux\""),
        problem("[\"tasklet\"]", "[]"),
        problem("[\"tasklet\"]", "[\"tasklets\"]"),
        problem("[limits]", "[limits]\ncpus = 0"),
        problem("run = \"40ms\"", "run = \"0ms\""),
        shown(
            &parse(
                &with("rate = \"1Gbit\"", "rate = \"1Mbit\"")
                    .replace("to = \"web\"", "from = \"uplink\""),
            )
            .unwrap_err(),
        ),
    ];
    insta::assert_snapshot!(problems.join("\n"), @r#"
      x mine.toml: unknown field `number`, expected one of `count`, `cpus`, `busy_vcpus`,
      | `latency_budget`, `moderation`, `rx_ring`, `p99`, `load`
        ,-[mine.toml:23:1]
     22 | [group.web]
     23 | number = 4
        : ^^^|^^
        :    `-- here
     24 | p99 = "2ms"
        `----

      x mine.toml: unknown profile `fast`, expected a .toml file or one of dong-2011, guo-2009, raj-
      | 2006-device, raj-2006-host, raj-2006-mailbox, dong-2011-10g, zhang-2010, thakur-2014, nested,
      | big-host, two-cores
       ,-[mine.toml:2:11]
     1 | title = "Four that send to each other"
     2 | profile = "fast"
       :           ^^^|^^
       :              `-- here
     3 | start = "1ms"
       `----

      x mine.toml: missing field `topology`
       ,-[mine.toml:1:1]
     1 | title = "Four that send to each other"
       : ^
       : `-- here
     2 | profile = "slow"
       `----

      x mine.toml: invalid value: string "that", expected "this", or a table with `sockets`,
      | `llcs_per_socket`, `cores_per_llc` and `threads_per_core`
       ,-[mine.toml:1:12]
     1 | topology = "that"
       :            ^^^|^^
       :               `-- here
     2 | title = "Four that send to each other"
       `----

      x mine.toml: the host has no CPUs, or more than 1024
       ,-[mine.toml:7:1]
     6 | 
     7 | [topology]
       : ^^^^^|^^^^
       :      `-- here
     8 | sockets = 0
       `----

      x mine.toml: `count` is 0, expected 1 to 1024 for all ports together
        ,-[mine.toml:23:9]
     22 | [group.web]
     23 | count = 0
        :         |
        :         `-- here
     24 | p99 = "2ms"
        `----

      x mine.toml: there is no CPU 6; the host has 6
        ,-[mine.toml:24:8]
     23 | count = 4
     24 | cpus = [6]
        :        ^|^
        :         `-- here
     25 | p99 = "2ms"
        `----

      x mine.toml: `2s` is longer than the longest latency budget, 1s
        ,-[mine.toml:24:18]
     23 | count = 4
     24 | latency_budget = "2s"
        :                  ^^|^
        :                    `-- here
     25 | p99 = "2ms"
        `----

      x mine.toml: expected at most 1024 busy vCPUs of all VMs
        ,-[mine.toml:24:14]
     23 | count = 4
     24 | busy_vcpus = 1000
        :              ^^|^
        :                `-- here
     25 | p99 = "2ms"
        `----

      x mine.toml: web-1: `rx_ring` is 1; it must lie between 2 and 32768
        ,-[mine.toml:22:1]
     21 | 
     22 | [group.web]
        : ^^^^^|^^^^^
        :      `-- here
     23 | count = 4
        `----

      x mine.toml: `2` is not a time such as "250us" (ns, us, ms, s)
        ,-[mine.toml:24:7]
     23 | count = 4
     24 | p99 = "2"
        :       ^|^
        :        `-- here
     25 | 
        `----

      x mine.toml: there is no group `db`, expected `uplink` or one of web
        ,-[mine.toml:26:1]
     25 | 
     26 | [[group.web.load]]
        : ^^^^^^^^^|^^^^^^^^
        :          `-- here
     27 | to = "db"
        `----

      x mine.toml: expected `from` or `to`: the uplink, or a group
        ,-[mine.toml:26:1]
     25 | 
     26 | [[group.web.load]]
        : ^^^^^^^^^|^^^^^^^^
        :          `-- here
     27 | to = "web"
        `----

      x mine.toml: `web` has no other VM, expected `count` above 1 or another group
        ,-[mine.toml:25:1]
     24 | 
     25 | [[group.web.load]]
        : ^^^^^^^^^|^^^^^^^^
        :          `-- here
     26 | to = "web"
        `----

      x mine.toml: `8000` is not a rate such as "80kpps" (pps, kpps, Mpps) or "2Gbit" (bit, Kbit,
      | Mbit, Gbit)
        ,-[mine.toml:28:51]
     27 | to = "web"
     28 | traffic = { datagrams = { bytes = 200, arrivals = { poisson = "8000" } } }
        :                                                   ^^^^^^^^^^|^^^^^^^^^
        :                                                             `-- here
        `----

      x mine.toml: datagrams have to come through all; expected `at_least` for streams and requests
        ,-[mine.toml:26:1]
     25 | 
     26 | [[group.web.load]]
        : ^^^^^^^^^|^^^^^^^^
        :          `-- here
     27 | to = "web"
        `----

      x mine.toml: there are more than 4096 flows of all VMs
        ,-[mine.toml:26:1]
     25 | 
     26 | [[group.web.load]]
        : ^^^^^^^^^|^^^^^^^^
        :          `-- here
     27 | to = "web"
        `----

      x mine.toml: there is no uplink, expected an `[uplink.NAME]`
        ,-[mine.toml:24:1]
     23 | 
     24 | [[group.web.load]]
        : ^^^^^^^^^|^^^^^^^^
        :          `-- here
     25 | to = "uplink"
        `----

      x mine.toml: a group cannot be called `uplink`
        ,-[mine.toml:22:1]
     21 | 
     22 | [group.uplink]
        : ^^^^^^^|^^^^^^
        :        `-- here
     23 | count = 4
        `----

      x mine.toml: `Web` cannot be the name of a port
        ,-[mine.toml:22:1]
     21 | 
     22 | [group.Web]
        : ^^^^^|^^^^^
        :      `-- here
     23 | count = 4
        `----

      x mine.toml: `web.a` has a dot in it, expected a name out of a-z, 0-9, - and _
        ,-[mine.toml:22:2]
     21 | 
     22 | [group."web.a"]
        :  ^^|^^
        :    `-- here
     23 | count = 4
        `----

      x mine.toml: `a-name-that-is-as-long-as-it-may-b` cannot be the name of a port
        ,-[mine.toml:22:1]
     21 | 
     22 | [group.a-name-that-is-as-long-as-it-may-b]
        : ^^^^^^^^^^^^^^^^^^^^^|^^^^^^^^^^^^^^^^^^^^
        :                      `-- here
     23 | count = 4
        `----

      x mine.toml: there are two ports called `web-3`
        ,-[mine.toml:22:1]
     21 | 
     22 | [group.web]
        : ^^^^^|^^^^^
        :      `-- here
     23 | count = 4
        `----

      x mine.toml: another uplink has the interface `eth0`
        ,-[mine.toml:18:1]
     17 | 
     18 | [uplink.wan]
        : ^^^^^^|^^^^^
        :       `-- here
     19 | rate = "1Gbit"
        `----

      x mine.toml: `an-interface-of-linux` cannot be the name of a network interface
        ,-[mine.toml:20:13]
     19 | rate = "1Gbit"
     20 | interface = "an-interface-of-linux"
        :             ^^^^^^^^^^^|^^^^^^^^^^^
        :                        `-- here
     21 | 
        `----

      x mine.toml: `execution` is empty, expected at least one value
        ,-[mine.toml:14:13]
     13 | [limits]
     14 | execution = []
        :             ^|
        :              `-- here
     15 | realization = ["shared"]
        `----

      x mine.toml: `tasklets` is not one of `tasklet`, `threads`, `rt-threads`
        ,-[mine.toml:14:13]
     13 | [limits]
     14 | execution = ["tasklets"]
        :             ^^^^^^|^^^^^
        :                   `-- here
     15 | realization = ["shared"]
        `----

      x mine.toml: `cpus` is 0, expected at least one for weir
        ,-[mine.toml:14:8]
     13 | [limits]
     14 | cpus = 0
        :        |
        :        `-- here
     15 | execution = ["tasklet"]
        `----

      x mine.toml: the run: `run_ns` is 0; it must lie between 1 and 3600000000000
       ,-[mine.toml:5:7]
     4 | warm_up = "200ms"
     5 | run = "0ms"
       :       ^^|^^
       :         `-- here
     6 | 
       `----

      x mine.toml: the datagrams in by `lan` are 51.2 Mbit/s, and its `rate` is 1.0 Mbit/s
        ,-[mine.toml:18:1]
     17 | 
     18 | [uplink.lan]
        : ^^^^^^|^^^^^
        :       `-- here
     19 | rate = "1Mbit"
        `----
    "#);
}

#[test]
fn what_cannot_finish_within_bounds_is_refused_before_it_starts() {
    for text in [
        with("run = \"40ms\"", "run = \"3000s\""),
        with("start", &format!("seeds = {:?}\nstart", (0..600).collect::<Vec<_>>())),
    ] {
        let host = parse(&text).unwrap();
        let error = check_bounds(&host, &Candidates::of(&host)).unwrap_err();
        assert!(matches!(error, LabError::PlanTooLong { .. }), "{error}");
    }
}

#[test]
fn the_example_is_a_host_that_can_be_planned() {
    let args = LabPlanArgs { file: "example".into(), seed: Some(3), json: false, profile: None };
    let host = host(&args).unwrap();
    assert_eq!(host.file.seeds, [3]);
    check_bounds(&host, &Candidates::of(&host)).unwrap();
    // The guide shows the same host.
    let guide = include_str!("../../../../docs/guide/lab.md");
    let shown = guide.split("```toml\n").find(|it| it.contains("\n[group.web]\n")).unwrap();
    let table = |text: &str| text.parse::<toml::Table>().unwrap();
    assert_eq!(table(shown.split("```").next().unwrap()), table(HOSTS[0].1));
}

#[test]
fn the_command_ends_with_an_error_where_there_is_no_plan() {
    let folder = tempfile::tempdir().unwrap();
    let profile = PROFILES.iter().find(|(name, _)| *name == "dong-2011").unwrap().1;
    std::fs::write(folder.path().join("slow.toml"), profile).unwrap();
    let file = folder.path().join("mine.toml");
    let written = |p99: &str| {
        let text = with("\"slow\"", "\"slow.toml\"").replace("\"2ms\"", p99);
        std::fs::write(&file, text.replace("8kpps", "500pps")).unwrap();
        let args = LabPlanArgs { file: file.clone(), seed: None, json: true, profile: None };
        let mut out = Vec::new();
        let result = run(&args, &mut out);
        (result, serde_json::from_slice::<serde_json::Value>(&out).unwrap())
    };
    let (result, json) = written("\"2ms\"");
    assert!(result.is_ok() && json["good"] == true, "{json:#}");
    assert!(json["weir_toml"].as_str().unwrap().starts_with("[switch]\n"));
    let (result, json) = written("\"1us\"");
    assert!(matches!(result, Err(LabError::NoPlan { .. })), "{result:?}");
    assert!(json["good"] == false && json["weir_toml"].is_null());
}
