//! Attached containers that echo their input.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use creel_testkit::docker::concurrently;
use creel_testkit::engine::Engine;
use creel_testkit::image;
use serde_json::json;

use super::stage::GuardStage;

/// The number of bytes echoed on each path.
const ECHOES: usize = 2000;
/// The number of containers attached at once.
const CROWD: usize = 200;
/// The time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A container that echoes its input.
struct Parrot<'a> {
    engine: &'a Engine,
    id: String,
    stream: UnixStream,
}

impl<'a> Parrot<'a> {
    fn attach(engine: &'a Engine) -> Result<Self> {
        let api = engine.api();
        let body = json!({
            "Image": image::REFERENCE, "Cmd": ["cat"], "OpenStdin": true, "StdinOnce": true,
            "AttachStdin": true, "HostConfig": { "NetworkMode": "none" },
        });
        let created = api.post("/containers/create", &body)?.json()?;
        let id = created["Id"].as_str().context("no id")?.to_owned();
        let mut stream = UnixStream::connect(engine.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "POST /containers/{id}/attach?stream=1&stdin=1&stdout=1 HTTP/1.1\r\nHost: engine\r\n\
             Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        if !head.starts_with(b"HTTP/1.1 101") {
            bail!("not attached: {}", String::from_utf8_lossy(&head));
        }
        api.post(&format!("/containers/{id}/start"), &json!(null))?;
        Ok(Self { engine, id, stream })
    }

    /// Reads one frame of output, which begins with a header of eight bytes that holds its length.
    fn read_output(&mut self) -> Result<Vec<u8>> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let mut output = vec![0; length as usize];
        self.stream.read_exact(&mut output)?;
        Ok(output)
    }

    fn end(self) -> Result<()> {
        self.engine.docker().remove_container(&self.id)
    }
}

/// Sends single bytes on both paths in turn, and returns the median round-trip times.
pub(super) fn echoes(stage: &GuardStage) -> Result<[Duration; 2]> {
    let mut parrots = [Parrot::attach(stage.engine(0))?, Parrot::attach(stage.engine(1))?];
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..ECHOES {
        for (parrot, figures) in parrots.iter_mut().zip(&mut figures) {
            let started_at = Instant::now();
            parrot.stream.write_all(b"x")?;
            let output = parrot.read_output()?;
            figures.push(started_at.elapsed());
            if output != b"x" {
                bail!("something else came back: {output:?}");
            }
        }
    }
    parrots.into_iter().try_for_each(Parrot::end)?;
    Ok(figures.map(|mut figures| super::report::median(&mut figures)))
}

/// Attaches many containers at once through the guard, and checks the output of each after its
/// input has ended. Returns how many were right.
pub(super) fn crowd(stage: &GuardStage) -> Result<(usize, Duration)> {
    let started_at = Instant::now();
    let numbers: Vec<usize> = (0..CROWD).collect();
    let mut parrots = concurrently(&numbers, 16, |_| Parrot::attach(stage.engine(1)))?;
    for (number, parrot) in parrots.iter_mut().enumerate() {
        parrot.stream.write_all(format!("container {number}\n").as_bytes())?;
        parrot.stream.shutdown(Shutdown::Write)?;
    }
    let mut right = 0;
    for (number, parrot) in parrots.iter_mut().enumerate() {
        let output = parrot.read_output()?;
        let mut rest = Vec::new();
        parrot.stream.read_to_end(&mut rest)?;
        let expected = format!("container {number}\n");
        right += usize::from(output == expected.as_bytes() && rest.is_empty());
    }
    let took = started_at.elapsed();
    concurrently(&parrots, 16, |parrot| parrot.engine.docker().remove_container(&parrot.id))?;
    Ok((right, took))
}

/// Returns the number of containers attached at once.
pub(super) const fn crowd_size() -> usize {
    CROWD
}
