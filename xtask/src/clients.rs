//! The Go client of `docs/guide/clients.md`, generated and built as the page says, against a running weir.

use std::{fs, path::Path, time::Duration};

use weir_bed::{
    error::{Error, Result, Tally, check as must},
    process::{Placement, Process, run_in, wait_until},
    workspace::Workspace,
};
use weir_testing::document::blocks;

use crate::steps::checked;

const PAGE: &str = "docs/guide/clients.md";
/// The comment of the block that runs here.
const HERE: &str = "xtask/src/clients.rs";

/// Longest time until weir answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the page's lines. Without Go, or without its modules, they are skipped.
pub fn check(workspace: &Workspace, weir: &Path) -> Result<Tally> {
    let offline = "GOFLAGS=-mod=mod go list -m github.com/oapi-codegen/runtime@v1.5.0";
    if let Err(error) = run_in(&["bash", "-c", offline], &workspace.root, &[]) {
        println!("{error}\nskipped: {PAGE}: needs Go and its modules");
        return Ok(Tally::skipped());
    }
    let made = lines_of_the_page(workspace, weir);
    if let Err(error) = &made {
        println!("{error}");
    }
    Ok(checked(PAGE, made.is_ok()))
}

fn lines_of_the_page(workspace: &Workspace, weir: &Path) -> Result<()> {
    let dir = workspace.run_dir("clients")?;
    let control = dir.join("control.sock");
    let config = dir.join("weir.toml");
    let text = format!("[switch]\ncontrol = {control:?}\n\n[template.tenant]\nrate = \"1Gbit\"\n");
    fs::write(&config, text).map_err(Error::io("write", &config))?;
    let argv = [&weir.to_string_lossy(), "run", &config.to_string_lossy()];
    let _weir = Process::start_logged(&argv, &Placement::default(), &dir.join("weir.log"))?;
    wait_until("weir's control socket", PATIENCE, || Ok(control.exists()))?;

    let page = workspace.root.join(PAGE);
    let page = fs::read_to_string(&page).map_err(Error::io("read", &page))?;
    let blocks = blocks(&page);
    let script = blocks.iter().filter(|block| block.run_by == Some(HERE));
    let script: Vec<_> = script.flat_map(|block| block.lines.iter().copied()).collect();
    let examples = workspace.root.join("examples").to_string_lossy().into_owned();
    // The last line is run twice, as a program that is asked again.
    let last = script.last().copied().unwrap_or_default();
    let script = format!("{}\n{last}\n", script.join("\n"))
        .replace("/usr/share/doc/weir/examples", &examples)
        .replace("/run/weir/control.sock", &control.to_string_lossy());
    let said = run_in(&["bash", "-euc", &script], &dir, &[])?;
    for outcome in ["web0: added", "web0: unchanged", "rate = 1Gbit (template)"] {
        must(said.contains(outcome), || format!("not `{outcome}`: {said}"))?;
    }
    Ok(())
}
