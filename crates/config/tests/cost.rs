//! The memory that it takes to read a configuration, as the allocator counts it. There is only one test, because the
//! allocator counts for the whole process.

use peak_alloc::PeakAlloc;
use weir_config::reload::{Able, Running};
use weir_config::{Config, Defaults, cost};
use weir_limits::{
    CONFIG_BYTES_MAX, CONFIG_COST_BYTES_MAX, CONFIG_COST_OF_ADMINS_BYTES_MAX,
    CONFIG_MEMORY_BYTES_MAX,
};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn defaults() -> Defaults {
    let control = "/run/weir/control.sock".parse().unwrap();
    Defaults { control, control_named: true, keeper: None }
}

/// The most memory that `job` had allocated at one time.
fn taken<T>(job: impl FnOnce() -> T) -> u64 {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    drop(job());
    assert!(ALLOCATOR.current_usage() <= before + 4096, "something stays");
    (ALLOCATOR.peak_usage() - before) as u64
}

fn read(text: &str) -> Option<Config> {
    Config::from_toml("a test", text, &defaults()).map_err(|error| drop(error.lines())).ok()
}

/// Texts that are costly in one way each: a beginning, a piece that repeats, and an end.
type Kind = (&'static str, fn(usize) -> String, &'static str);

/// A template with many values.
const RULES: &str = "[template.t]\ngroups=[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]\n\
    addresses=[\"10.0.0.1\",\"10.0.0.2\",\"10.0.0.3\",\"10.0.0.4\"]\nfilter=[\
    {direction=\"tx\",action=\"drop\"},{direction=\"rx\",action=\"drop\"},\
    {direction=\"tx\",action=\"drop\"},{direction=\"rx\",action=\"drop\"},\
    {direction=\"tx\",action=\"drop\"},{direction=\"rx\",action=\"drop\"},\
    {direction=\"tx\",action=\"drop\"},{direction=\"rx\",action=\"drop\"}]\n";

const KINDS: [Kind; 36] = [
    ("", |n| format!("[v{n}]\n"), ""),
    ("", |n| format!("[vif.v{n}]\n"), ""),
    ("", |n| format!("[uplink.v{n}]\nkind=\"tap\"\nname=\"t{n}\"\n"), ""),
    ("", |n| format!("[network.v{n}]\nvni={n}\n"), ""),
    ("", |n| format!("[group.g{n}]\nrules=[{{direction=\"in\"}},{{direction=\"in\"}}]\n"), ""),
    ("", |n| format!("[vif.v{n}]\ngroups=[\"a\",\"b\"]\n"), ""),
    ("", |n| format!("[vif.v{n}]\nqueues = 2\nvlan = 10\nmtu = 9000\nrate = \"1Gbit\"\n"), ""),
    ("[template.t]\nvlan=7\n", |n| format!("[vif.v{n}]\ntemplate=\"t\"\n"), ""),
    (RULES, |n| format!("[vif.v{n}]\ntemplate=\"t\"\n"), ""),
    ("", |n| format!("[vif.v{}.a{n}]\n", n / 4), ""),
    ("[vif.a]\n", |n| format!("k{n}=x\n"), ""),
    ("[vif.a]\n", |n| format!("k{n}=1\n"), ""),
    ("[vif.a]\n", |_| "[[vif.a.filter]]\n".into(), ""),
    ("[vif.a]\n", |_| "[[vif.a.filter]]\ndirection=\"tx\"\naction=\"drop\"\n".into(), ""),
    ("[vif.a]\nfilter=[", |_| "{direction=\"tx\",action=\"drop\"},".into(), "]"),
    ("[vif.a]\nfilter=[", |_| "{},".into(), "]"),
    ("[vif.a]\ntrunk=[", |n| format!("{},", n % 4094 + 1), "]"),
    ("[vif.a]\naddresses=[", |_| "\"10.0.0.1\",".into(), "]"),
    ("", |_| "[[a]]\n".into(), ""),
    ("a=[", |_| "[],".into(), "]"),
    ("a=[", |_| "[1],".into(), "]"),
    ("a=[", |_| "{a=1},".into(), "]"),
    ("a=[", |_| "\"\\t\",".into(), "]"),
    ("", |_| "a.".into(), "a=1"),
    ("", |n| format!("k{n}.a.a.a.a.a.a.a.a.a.a=1\n"), ""),
    ("", |n| format!("[k{n}.a.a.a.a.a.a.a.a.a.a]\n"), ""),
    ("", |n| format!("k{n}=1\n"), ""),
    ("", |_| "k\n".into(), ""),
    ("", |_| "\"\n".into(), ""),
    ("", |_| "=".into(), ""),
    ("", |_| ".".into(), ""),
    ("", |_| "\n".into(), ""),
    ("#", |_| "\u{1}".into(), ""),
    ("a=\"", |_| "\\q".into(), "\""),
    ("a=\"", |_| "\\u0041".into(), "\""),
    ("a=", |_| "__".into(), ""),
];

/// The longest text of `kind` that costs no more than `most`.
fn longest((begin, piece, end): &Kind, most: u64, cost: fn(&str) -> u64) -> String {
    let mut text = String::from(*begin);
    let mut left = most - cost(begin) - cost(end);
    for number in 0.. {
        let piece = piece(number);
        let fits = text.len() + piece.len() + end.len() <= CONFIG_BYTES_MAX as usize;
        match left.checked_sub(cost(&piece)) {
            Some(less) if fits => left = less,
            _ => break,
        }
        text += &piece;
    }
    text + end
}

fn begin_of(text: &str) -> &str {
    text.get(..60).unwrap_or(text)
}

/// Memory use and the counted cost grow alike, so the test compares a part of both and takes a part of the time.
const PART: u64 = 4;
const COST_MAX: u64 = CONFIG_COST_OF_ADMINS_BYTES_MAX / PART;
const MEMORY_MAX: u64 = CONFIG_MEMORY_BYTES_MAX / PART;

#[test]
fn no_configuration_takes_more_memory_than_was_counted_before() {
    let empty = read("").unwrap();
    let running = Running {
        switch: &empty.switch,
        networks: &empty.networks,
        groups: &empty.groups,
        templates: &empty.templates,
        uplinks: Vec::new(),
        vifs: Vec::new(),
        xen: None,
        able: Able { sockets: &|_, _| true, uplinks: true, pin_vcpus: true },
    };
    for kind in &KINDS {
        let text = longest(kind, COST_MAX, cost::to_read);
        let read = taken(|| read(&text).map(|config| running.compare(&config)));
        assert!(text.len() > 1024, "{:?} is refused while it is short", begin_of(&text));
        assert!(read <= MEMORY_MAX, "{:?}: {read} bytes to read", begin_of(&text));
        let text = longest(kind, COST_MAX, cost::to_edit);
        let edited = taken(|| self::read(&text).map(|config| running.saved(&text, &config)));
        assert!(edited <= MEMORY_MAX, "{:?}: {edited} bytes to edit", begin_of(&text));
    }
    for dear in ["a.", "{},", "[1],", "="] {
        let text = dear.repeat(CONFIG_BYTES_MAX as usize / dear.len());
        let refused = taken(|| assert!(read(&text).is_none()));
        assert!(refused < 4 * CONFIG_BYTES_MAX, "{dear:?}: {refused} bytes to refuse");
    }
    let real: Kind = (
        "",
        |n| match n % 25 {
            0 => format!("[vif.v{}]\nqueues = 2\nvlan = 10\nrate = \"1Gbit\"\n\n", n / 25),
            _ => format!("[[vif.v{}.filter]]\ndirection = \"tx\"\naction = \"drop\"\n\n", n / 25),
        },
        "",
    );
    let text = longest(&real, u64::MAX, cost::to_read);
    assert!(text.len() + 100 > CONFIG_BYTES_MAX as usize);
    let whole = taken(|| assert!(read(&text).is_some(), "a long file is good"));
    assert!(whole <= CONFIG_COST_BYTES_MAX, "{whole} bytes");
}
