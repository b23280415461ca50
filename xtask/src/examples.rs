//! `examples/` and the forge's workflow: each file is checked by the tool that it is written for. The Go client of
//! `docs/guide/clients.md` is generated and built as the page says, and runs against a weir.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    error::{Error, Result, Tally, check as must},
    packages,
    process::{Placement, Process, run_in, wait_until},
    workspace::{Programs, Workspace},
};
use weir_testing::document::blocks;

use crate::steps::{Selection, checked};

/// The workflow's checker. It is built once with Go, in this version.
const ACTIONLINT: &str = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7";

/// The package's units, and the limit of the exposure that systemd reports for each (0 to 100).
const EXPOSURE: &[(&str, u32)] =
    &[("debian/weir.service", 45), ("debian/weir.weir-keeper.service", 25)];

/// Values for all variables of the role's template.
const ROLE: &str = r#"{"weir_latency_budget": "250us", "weir_uplink": "weir0",
    "weir_vifs": {"web0": {"latency_budget": "1ms", "queues": 2}, "db0": {}}}"#;

/// The comment of the guides' blocks that are checked here.
const HERE: &str = "xtask/src/examples.rs";

/// Runs one check for each tool.
pub fn check(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    if let Err(error) = packages::ensure_for_examples(workspace) {
        // Tools that are installed are still used.
        println!("{error}");
    }
    let mut tally = Tally::default();
    let domains = ["web0.xml", "db0.xml"].map(|name| format!("examples/libvirt/{name}"));
    for domain in &domains {
        tally += tool(workspace, "virt-xml-validate", &[domain, "domain"])?;
    }
    let playbook = "examples/ansible/site.yml";
    tally += tool(workspace, "ansible-playbook", &["--syntax-check", "-i", "host,", playbook])?;
    tally += tool(workspace, "ansible-lint", &["--offline", "--strict", "-q", playbook])?;
    tally += template(workspace, selection)?;
    tally += units(workspace)?;
    for (unit, most) in EXPOSURE {
        let most = format!("--threshold={most}");
        let args = ["security", "--offline=true", "--no-pager", &most, unit];
        tally += tool(workspace, "systemd-analyze", &args)?;
    }
    let files = ["prometheus.yml", "weir-alerts.yml", "weir-alerts.test.yml"];
    let [config, alerts, tests] = files.map(|name| format!("examples/prometheus/{name}"));
    // The token's file does not exist on this host.
    let config = ["check", "config", "--syntax-only", &config];
    for args in [&config[..], &["check", "rules", &alerts], &["test", "rules", &tests]] {
        tally += tool(workspace, "promtool", args)?;
    }
    tally += workflow(workspace)?;
    Ok(tally)
}

/// Checks the units of `examples/systemd` and those in the guides.
fn units(workspace: &Workspace) -> Result<Tally> {
    let mut units = Vec::new();
    let examples = workspace.root.join("examples/systemd");
    for path in entries(&examples)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        units.push((name, read(&path)?));
    }
    for path in entries(&workspace.root.join("docs/guide"))? {
        let document = read(&path)?;
        let here = blocks(&document).into_iter().filter(|block| block.run_by == Some(HERE));
        for block in here.filter(|block| block.language == "ini") {
            let page = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            units.push((format!("{page}-{}.service", block.first), block.lines.join("\n") + "\n"));
        }
    }
    if !in_path("systemd-analyze") {
        println!("skipped: systemd-analyze is not installed: {} units", units.len());
        return Ok(Tally::skipped());
    }
    let mut tally = Tally::default();
    let dir = workspace.target("examples")?;
    for (name, unit) in units {
        // The programs of the units do not exist on this host, and a template needs an instance name.
        let program = |line: &str| match line.split_once("=/") {
            Some((key, rest)) if key.starts_with("Exec") => {
                let arguments = rest.split_once(' ').map_or("", |(_, arguments)| arguments);
                format!("{key}=/bin/true {arguments}")
            }
            _ => line.to_owned(),
        };
        let unit: Vec<_> = unit.lines().map(program).collect();
        let path = dir.join(name.replace("@.", "@web0."));
        fs::write(&path, unit.join("\n") + "\n").map_err(Error::io("write", &path))?;
        // systemd-analyze prints faults, but ends with success.
        let verify = "! systemd-analyze verify --man=no \"$0\" 2>&1 | grep .";
        let silent = run_in(&["sh", "-c", verify, &path.to_string_lossy()], &dir, &[]);
        if let Err(error) = &silent {
            println!("{error}");
        }
        tally += checked(&format!("systemd-analyze verify {name}"), silent.is_ok());
    }
    Ok(tally)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).map_err(Error::io("list", dir))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

/// Runs a tool of the system, or counts it as skipped if it is not installed.
fn tool(workspace: &Workspace, program: &str, args: &[&str]) -> Result<Tally> {
    let name = format!("{program} {}", args.join(" "));
    if !in_path(program) {
        println!("skipped: {program} is not installed: {name}");
        return Ok(Tally::skipped());
    }
    let argv = [&[program], args].concat();
    let ran = run_in(&argv, &workspace.root, &[]);
    if let Err(error) = &ran {
        println!("{error}");
    }
    Ok(checked(&name, ran.is_ok()))
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // `join` with an absolute path gives that path.
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// Checks that weir accepts the role's configuration as Ansible writes it.
fn template(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    let to = workspace.target("examples")?.join("weir.toml");
    let weir = match &selection.weir {
        Some(weir) => weir.clone(),
        None => Programs::build(workspace)?.weir(),
    };
    let argument = format!(
        "src=examples/ansible/roles/weir/templates/weir.toml.j2 dest={} validate='{} check %s'",
        to.display(),
        weir.display()
    );
    let args = ["-i", "localhost,", "-c", "local", "all", "-m", "template", "-a", &argument];
    tool(workspace, "ansible", &[&args[..], &["-e", ROLE]].concat())
}

fn workflow(workspace: &Workspace) -> Result<Tally> {
    let file = ".github/workflows/ci.yml";
    if in_path("actionlint") {
        return tool(workspace, "actionlint", &[file]);
    }
    let Some(go) = ["go", "/usr/local/go/bin/go"].into_iter().find(|go| in_path(go)) else {
        println!("skipped: neither actionlint nor go is installed: {file}");
        return Ok(Tally::skipped());
    };
    let own: PathBuf = workspace.target("tools")?.join("bin");
    let program = own.join("actionlint");
    if !program.exists()
        && let Err(error) =
            run_in(&[go, "install", ACTIONLINT], &workspace.root, &[("GOBIN", own.as_os_str())])
    {
        println!("{error}\nskipped: actionlint cannot be built: {file}");
        return Ok(Tally::skipped());
    }
    tool(workspace, &program.to_string_lossy(), &[file])
}

const PAGE: &str = "docs/guide/clients.md";

/// Longest time until weir answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the page's lines. Without Go, or without its modules, they are skipped.
pub fn go_client(workspace: &Workspace, weir: &Path) -> Result<Tally> {
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
    // The last line is run twice: the second run changes nothing.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alert_is_tried_on_a_healthy_host_and_on_an_ill_one() {
        let dir = Workspace::find().unwrap().root.join("examples/prometheus");
        let [alerts, tests] =
            ["weir-alerts.yml", "weir-alerts.test.yml"].map(|name| read(&dir.join(name)).unwrap());
        let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        let names: Vec<_> = names.collect();
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            let tried = tests.matches(&format!("alertname: {name}\n")).count();
            let fires = tests.matches(&format!("alertname: {name}\n        exp_alerts:")).count();
            assert_eq!((tried, fires), (2, 1), "{name}");
        }
    }
}
