//! Any text as `weir.toml`, as an interface for `weir vif add`, and as `KEY=VALUE` for `weir vif set`. The text is
//! accepted or refused, and the diagnostic of a refusal can be printed.
#![cfg_attr(fuzzing, no_main)]

use std::fmt::Write as _;
use std::sync::LazyLock;

use weir_config::{Config, Defaults};

static DEFAULTS: LazyLock<Defaults> =
    LazyLock::new(|| Defaults::of_user(true, None).expect("the system's defaults"));

weir_fuzz::target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut printed = String::new();
    match Config::from_toml("weir.toml", text, &DEFAULTS) {
        Ok(config) => {
            // An accepted interface is sent to clients of the control socket as JSON, and they must be able to read
            // it.
            for vif in &config.vifs {
                let said = serde_json::to_string(vif).expect("an interface as JSON");
                let read = serde_json::from_str(&said).expect("the same interface");
                assert_eq!(*vif, read);
            }
        }
        Err(error) => write!(printed, "{error} {error:?}").expect("text"),
    }
    assert!(
        printed.len() < 64 * 1024 + 8 * text.len(),
        "a diagnostic of {} bytes about {} bytes",
        printed.len(),
        text.len()
    );
});
