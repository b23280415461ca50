//! An interface leaves nothing behind. The test is alone in its process, since it counts the
//! process's resources.

#[allow(dead_code, reason = "shared with the other tests")]
#[path = "driver/backend.rs"]
mod backend;

use std::path::Path;
use std::time::{Duration, Instant};

use backend::{Backend, Config};
use weir_vhost_user::Request;
use weir_vif::{Options, Vif};
use weir_wire::{Mac, Offload};

fn entries(path: &str) -> usize {
    Path::new(path).read_dir().unwrap().count()
}

fn threads() -> usize {
    entries("/proc/self/task")
}

/// Counts descriptors, threads and mappings of interfaces, once the threads have gone down to the
/// expected number. A joined thread may stay in `/proc` for a moment.
fn held(but_threads: usize) -> [usize; 3] {
    let end = Instant::now() + Duration::from_secs(10);
    while threads() > but_threads && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.lines().filter(|l| l.contains("memfd:weir-vif"));
    [entries("/proc/self/fd"), threads(), mappings.count()]
}

fn session(config: &Config, queues: usize) {
    let options = Options { queues, ..Options::new(Mac([0x52, 0x54, 0, 0, 0, 1])) };
    let (backend, socket) = Backend::echo(config);
    if let Ok(mut vif) = Vif::over(socket, &options) {
        for mut pair in vif.queue_pairs() {
            // This frame is in flight at the interface's end.
            pair.send(&[0; 60], &Offload::NONE).unwrap();
            pair.flush();
        }
    }
    backend.join();
}

fn refusing(request: Request) -> Config {
    Config { refuse: Some(request), ..Config::default() }
}

/// This is a single test, since each of two tests would see the other's resources.
#[test]
fn an_interface_that_ends_or_never_began_releases_everything() {
    // The thread that unmaps guests' memory stays once it was started.
    let at_first = threads() + 1;
    session(&Config::default(), 1);
    let before = held(at_first);
    assert_eq!(before[1..], [at_first, 0]);
    for queues in 1..=8 {
        session(&Config::default(), queues);
    }
    assert_eq!(held(at_first), before);
    for request in [
        Request::SetOwner,
        Request::SetFeatures,
        Request::AddMemReg,
        Request::SetVringKick,
        Request::SetVringEnable,
    ] {
        session(&refusing(request), 2);
    }
    assert_eq!(held(at_first), before);
}
