//! Headless Chromium, controlled over pipes by the Chrome DevTools Protocol.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{ChildStdin, ChildStdout},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    error::{Error, Result, check},
    packages::CHROMIUM,
    process::{Placement, Process, run, run_in, wait_until},
    workspace::Workspace,
};

/// Longest time for any request. The browser renders without a GPU.
const PATIENCE: Duration = Duration::from_secs(60);

/// The npm package of axe, which checks a page for accessibility.
const AXE: &str = "axe-core-4.14.1.tgz";
const AXE_SHA256: &str = "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745";

/// Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
const PIPES: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

/// Chromium must not show prompts to a user, and must not fetch anything on its own.
const OPTIONS: &[&str] = &[
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
];

/// A browser that shows one page. Ended when dropped.
pub struct Browser {
    /// The process is dropped first, so that the browser ends before its files are removed.
    _process: Process,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    asked: u64,
    complaints: Vec<String>,
}

/// The screen on which the page is shown.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
    /// True if the user prefers dark colours.
    pub dark: bool,
}

impl Browser {
    /// Starts the browser at `placement`. Its own files are written below `dir`.
    pub fn start(dir: &Path, placement: &Placement) -> Result<Self> {
        let profile = format!("--user-data-dir={}", dir.join("profile").display());
        let argv =
            [&["sh", "-c", PIPES, CHROMIUM][..], OPTIONS, &[&profile, "about:blank"]].concat();
        let (process, to, from) =
            Process::start_piped(&argv, placement, &dir.join("chromium.log"))?;
        let from = messages(from);
        let (session, complaints) = (None, Vec::new());
        let mut browser = Self { _process: process, to, from, session, asked: 0, complaints };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.ask("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.ask(domain, json!({}))?;
        }
        Ok(browser)
    }

    /// Shows the page at `url`.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.ask("Page.navigate", json!({ "url": url }))?;
        check(opened["errorText"].is_null(), || format!("{url}: {}", opened["errorText"]))?;
        self.wait("the page to be there", "document.readyState === 'complete'")
    }

    /// Shows the page on another screen.
    pub fn show_on(&mut self, screen: Screen) -> Result<()> {
        let Screen { width, height, dark } = screen;
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.ask("Emulation.setEmulatedMedia", features)?;
        Ok(())
    }

    /// The value of a JavaScript expression in the page.
    pub fn value_of(&mut self, expression: &str) -> Result<Value> {
        let what = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.ask("Runtime.evaluate", what)?;
        let failed = &answer["exceptionDetails"];
        check(failed.is_null(), || format!("{expression}: {failed}"))?;
        Ok(answer["result"]["value"].take())
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, what: &str, expression: &str) -> Result<()> {
        wait_until(what, PATIENCE, || Ok(self.value_of(expression)? == json!(true)))
    }

    /// Presses a key, by its name in JavaScript.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 => key,
            _ => "",
        };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": key, "text": if kind == "keyDown" { text } else { "" },
                "windowsVirtualKeyCode": code,
            });
            self.ask("Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    /// Writes a picture of the whole page to `file`, as a PNG.
    pub fn picture(&mut self, file: &Path) -> Result<()> {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.ask("Page.captureScreenshot", whole)?;
        let text = picture["data"].as_str().unwrap_or_default();
        let encoded = file.with_extension("base64");
        std::fs::write(&encoded, text).map_err(Error::io("write", &encoded))?;
        run(&["sh", "-c", "base64 -d \"$0\" >\"$1\" && rm \"$0\"", &at(&encoded), &at(file)])?;
        Ok(())
    }

    /// Errors and warnings on the console since the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    /// Faults that axe finds in the page as it is now.
    pub fn axe(&mut self, workspace: &Workspace) -> Result<Vec<String>> {
        if self.value_of("typeof axe")? == json!("undefined") {
            let text = axe(workspace)?;
            self.value_of(&format!("{text};0"))?;
        }
        let run = "axe.run(document).then((found) => found.violations.flatMap((it) => \
                   it.nodes.map((node) => `${it.id}: ${it.help}: ${node.target} ${node.html}`)))";
        let found = self.value_of(run)?;
        let found = found.as_array().ok_or_else(|| Error::parse("findings", found.to_string()))?;
        Ok(found.iter().map(|it| it.as_str().unwrap_or_default().to_owned()).collect())
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        self.asked += 1;
        let mut message = json!({ "id": self.asked, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to
            .write_all(format!("{message}\0").as_bytes())
            .map_err(|source| Error::Io { what: format!("tell the browser {method}"), source })?;
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(mut message) = self.from.recv_timeout(left) else {
                return Err(Error::Timeout {
                    what: format!("the browser's answer to {method}"),
                    after: PATIENCE,
                });
            };
            if message["id"] == json!(self.asked) {
                check(message["error"].is_null(), || format!("{method}: {}", message["error"]))?;
                return Ok(message["result"].take());
            }
            self.complaints.extend(complaint(&message));
        }
    }
}

/// The text of an error or a warning on the console; `None` for other messages.
fn complaint(message: &Value) -> Option<String> {
    let about = &message["params"];
    let is_bad = |level: &Value| matches!(level.as_str(), Some("error" | "warning" | "assert"));
    match message["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(about["exceptionDetails"].to_string()),
        "Runtime.consoleAPICalled" if is_bad(&about["type"]) => Some(about["args"].to_string()),
        "Log.entryAdded" if is_bad(&about["entry"]["level"]) => {
            let entry = &about["entry"];
            Some(format!("{} {}", entry["text"].as_str().unwrap_or_default(), entry["url"]))
        }
        _ => None,
    }
}

/// Reads messages; each ends with a NUL.
fn messages(from: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for message in BufReader::new(from).split(0) {
            let message = message.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            match message.map(|message| sender.send(message)) {
                Some(Ok(())) => {}
                _ => return,
            }
        }
    });
    receiver
}

/// The script of axe. It is fetched once.
fn axe(workspace: &Workspace) -> Result<String> {
    let dir = workspace.target("axe")?;
    let (packed, script) = (dir.join(AXE), dir.join("package/axe.min.js"));
    if !packed.exists() {
        let version = AXE.trim_start_matches("axe-core-").trim_end_matches(".tgz");
        run_in(&["npm", "pack", "--silent", &format!("axe-core@{version}")], &dir, &[])?;
    }
    let sum = run(&["sha256sum", &at(&packed)])?;
    if !sum.starts_with(AXE_SHA256) {
        let _ = std::fs::remove_file(&packed);
        return Err(Error::Check(format!("{AXE} is not what it was: {sum}")));
    }
    run_in(&["tar", "-xzf", AXE, "package/axe.min.js"], &dir, &[])?;
    std::fs::read_to_string(&script).map_err(Error::io("read", &script))
}

fn at(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_console_complains_of_is_told_and_what_it_says_is_not() {
        let error = json!({ "method": "Log.entryAdded", "params": { "entry": { "level": "error", "text": "no" } } });
        assert_eq!(complaint(&error).unwrap(), "no null");
        let thrown = json!({ "method": "Runtime.exceptionThrown", "params": { "exceptionDetails": { "text": "it" } } });
        assert!(complaint(&thrown).unwrap().contains("it"));
        let said = json!({ "method": "Runtime.consoleAPICalled", "params": { "type": "log", "args": [] } });
        assert_eq!(complaint(&said), None);
        assert_eq!(complaint(&json!({ "id": 1 })), None);
    }
}
