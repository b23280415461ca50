//! `weir top` on a real terminal.

use std::time::Duration;

use weir_bed::{
    error::{Error, Result, check},
    lab::Lab,
    process::{Placement, Process},
    tmux::Terminal,
    weir::{Setup, Vif, Weir},
    workspace::Programs,
};

/// Longest time until a change is on the screen.
const PATIENCE: Duration = Duration::from_secs(20);

/// The addresses of the guests of the example `paced`.
const MACS: [&str; 2] = ["52:54:00:00:01:01", "52:54:00:00:01:02"];

/// A weir with an interface for each guest of `paced`, and an interface without a guest.
pub(super) fn setup() -> Setup {
    let mut vifs = MACS.map(|mac| Vif { mac: Some(mac), ..Vif::default() }).to_vec();
    vifs.push(Vif::default());
    Setup { vifs, ..Setup::default() }
}

/// Sends 20,000 frames a second from the first guest to the second, for at most a minute.
pub(super) fn traffic(lab: &Lab, weir: &Weir) -> Result<Process> {
    let program = Programs::beside(&lab.weir).example("guests");
    let argv = [program, "paced".into(), weir.socket(0_u8)?, weir.socket(1_u8)?];
    let mut argv: Vec<_> = argv.iter().map(|path| path.to_string_lossy()).collect();
    argv.extend(["20000", "200", "60"].map(Into::into));
    let argv: Vec<_> = argv.iter().map(|word| &**word).collect();
    Process::start_logged(&argv, &Placement::default(), &weir.dir().join("paced.log"))
}

/// The line of a screen that begins with `name`.
fn line<'s>(screen: &'s str, name: &str) -> Option<&'s str> {
    screen.lines().find(|line| line.starts_with(name))
}

/// True if the interface has thousands of frames a second.
fn flows(screen: &str, name: &str) -> bool {
    line(screen, name).is_some_and(|line| line.contains(" k "))
}

pub(super) fn top_shows_traffic_and_survives_keys_sizes_and_the_end_of_weir(
    lab: &Lab,
) -> Result<()> {
    let mut weir = Weir::start(lab, &setup())?;
    let _traffic = traffic(lab, &weir)?;
    let control = weir.dir().join("control.sock");
    let (program, control) = (lab.weir.display(), control.display());
    let command = format!("{program} top --control {control}; echo ended: $?; exec cat");
    let terminal = Terminal::start(weir.dir(), [100, 24], &command)?;
    let await_screen =
        |what: &str, wanted: &dyn Fn(&str) -> bool| terminal.await_screen(what, PATIENCE, wanted);
    await_screen("rates", &|it| flows(it, "vif0") && flows(it, "vif1"))?;

    // The sender uses most of the worker's time, so that it is in the first row.
    terminal.press(&["Home", "Enter"])?;
    await_screen("details", &|it| it.contains("vif0: running") && it.contains("holds for"))?;
    terminal.press(&["Escape"])?;
    terminal.press(&["/", "vif2", "Enter"])?;
    await_screen("one interface", &|it| line(it, "vif2").is_some() && line(it, "vif1").is_none())?;
    terminal.press(&["Escape"])?;
    terminal.press(&["Left", "?"])?;
    await_screen("help", &|it| it.contains("reverse the order"))?;
    terminal.press(&["Escape"])?;

    for size in [[12, 4], [2, 2], [200, 50], [40, 10]] {
        terminal.resize(size)?;
        let wide = size[0] == 200;
        await_screen("another size", &|it| {
            size[0] < 12 || it.contains("NAME") && it.contains("HELD BECAUSE") == wide
        })?;
    }
    await_screen("rates in a small terminal", &|it| flows(it, "vif1"))?;

    weir.crash();
    await_screen("that weir is gone", &|it| it.contains("no weir answers") && flows(it, "vif1"))?;
    weir.launch_again()?;
    await_screen("that weir is back", &|it| {
        !it.contains("no weir answers") && it.contains("dropped ") && line(it, "vif1").is_some()
    })?;

    terminal.resize([100, 24])?;
    terminal.press(&["q"])?;
    let left = await_screen("the end", &|it| it.contains("ended: 0"))?;
    check(!left.contains("NAME"), || format!("the terminal was not given back:\n{left}"))?;

    drop(terminal);
    // A terminal that can only show lines.
    let dumb = format!("TERM=dumb {program} top --control {control}; exec cat");
    let terminal = Terminal::start(weir.dir(), [100, 24], &dumb)?;
    terminal.await_screen("two tables", PATIENCE, |it| it.matches("DROP REASON").count() >= 2)?;

    // The output is not a terminal.
    let table = weir.control(&["top", "--once"])?;
    check(table.contains("HELD BECAUSE") && line(&table, "vif2").is_some(), || table.clone())?;
    let json = weir.control(&["top", "--once", "--json", "--filter", "vif2"])?;
    let rates: serde_json::Value =
        serde_json::from_str(&json).map_err(|_| Error::parse("JSON", json.as_str()))?;
    check(rates["ports"][0]["rx"]["packets_per_s"].is_number(), || json)
}
