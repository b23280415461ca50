//! The memory of an interface without a front end, as the allocator counts it. There is only one test, because the
//! allocator counts for the whole process.

use std::sync::Arc;

use peak_alloc::PeakAlloc;
use weir_config::{Config, Defaults};
use weir_switch::Switch;
use weir_switch::control::{ControlHandler as _, Request};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Most bytes that an interface may take: its port, its counters, its settings, and its names.
const BYTES_MAX: usize = 16 << 10;

/// Bytes that stay allocated with a switch of this number of interfaces.
fn taken(vifs: usize) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control.sock").to_str().unwrap().parse().unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    let vifs: String = (0..vifs).map(|nth| format!("[vif.v{nth}]\n")).collect();
    let text = format!("[switch]\nworkers = 1\n{vifs}");
    let before = ALLOCATOR.current_usage();
    let switch: Arc<Switch> = {
        let config = Config::from_toml("weir.toml", &text, &defaults).unwrap();
        Switch::start(&config).unwrap()
    };
    // The answer comes from all threads that look after interfaces.
    let name = "v0".parse().unwrap();
    drop(switch.handle(Request::VifExplain { name }));
    ALLOCATOR.current_usage() - before
}

#[test]
fn an_interface_takes_little_and_not_more_beside_many_others() {
    // The first switch allocates memory that stays for all later ones.
    taken(2);
    let [few, more, many] = [32, 64, 288].map(taken);
    let (beside_few, beside_many) = ((more - few) / 32, (many - more) / 224);
    assert!(beside_few < BYTES_MAX, "{beside_few}");
    assert!(
        beside_many < beside_few + beside_few / 8,
        "{beside_many}, and {beside_few} beside few"
    );
}
