//! From the values of a pickle to a [`Snapshot`].
//!
//! A hostile file can refer to one list a million times. So entries are counted: there can be no more segments, blocks
//! and trace entries than the file builds containers, because PyTorch never uses one dictionary for two of them. Stacks
//! and frames are shared, and each is read once, by the number of its container.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use super::keys::{Key, Seen};
use super::model::{
    Action, Block, BlockState, ExternalAnnotation, Segment, SegmentKind, Snapshot, TraceEntry,
};
use crate::error::{Format, Result, TraceError};
use crate::limits::Limits;
use crate::names::{FrameId, LabelId};
use crate::pickle::{Items, Node, Pairs, Pickle, Value, View, parse};

/// Settings and keys that are not kept are copied out of the file; a hostile one repeats a long string.
const COPIED_TEXT_LIMIT_BYTES: usize = 64 << 10;
const IGNORED_KEYS_LIMIT: usize = 100;

impl Snapshot {
    /// Reads the pickle that `torch.cuda.memory._dump_snapshot` writes.
    ///
    /// # Errors
    /// As [`parse`], and for values that are not as a snapshot has them, with the byte of the dictionary they are in.
    pub fn from_pickle(bytes: &[u8], limits: &Limits) -> Result<Self> {
        let pickle = parse(bytes, limits)?;
        let mut reader = Reader {
            pickle: &pickle,
            out: Self::default(),
            keys: Seen::new(),
            actions: Seen::new(),
            strings: HashMap::new(),
            by_container: vec![0; pickle.containers()],
            entries: 0,
            entries_limit: (pickle.containers() as u64).min(limits.events),
            at: 0,
        };
        reader.snapshot()?;
        Ok(reader.out)
    }
}

struct Reader<'p> {
    pickle: &'p Pickle<'p>,
    out: Snapshot,
    keys: Seen<Key>,
    actions: Seen<Action>,
    /// Strings of the file that are in the table.
    strings: HashMap<Value, u32>,
    /// For lists that were read as stacks their label, for dictionaries read as frames their id plus one.
    by_container: Vec<u32>,
    entries: u64,
    entries_limit: u64,
    /// Where the dictionary being read begins, for errors.
    at: u64,
}

impl<'p> Reader<'p> {
    #[cold]
    fn expected(&self, what: &str, found: Node<'_>) -> TraceError {
        let offset = found.container_offset().unwrap_or(self.at);
        TraceError::malformed(Format::TorchSnapshot, offset, format!("expected {what}, found {found:?}"))
    }

    fn snapshot(&mut self) -> Result<()> {
        let mut is_snapshot = false;
        for (key, value) in self.dict(self.pickle.root(), "a snapshot's dictionary")? {
            match self.key(key)? {
                Key::Segments => {
                    is_snapshot = true;
                    for segment in self.list(value, "a list of segments")? {
                        let segment = self.segment(segment)?;
                        self.out.segments.push(segment);
                    }
                }
                Key::DeviceTraces => {
                    is_snapshot = true;
                    for trace in self.list(value, "a list of traces")? {
                        self.count_entry()?;
                        let items = self.list(trace, "a list of trace entries")?;
                        // Room for what the list says, and never for more than the file can have.
                        let room =
                            self.entries_limit.saturating_sub(self.entries).min(items.remaining() as u64);
                        let mut entries = Vec::with_capacity(room as usize);
                        for entry in items {
                            entries.push(self.trace_entry(entry)?);
                        }
                        self.out.device_traces.push(entries);
                    }
                }
                Key::AllocatorSettings => {
                    for (key, value) in self.dict(value, "the allocator's settings")? {
                        let key = self.text(key, "a setting's name")?;
                        let value = self.setting(value, 0)?;
                        self.out.allocator_settings.insert(key, value);
                    }
                }
                Key::ExternalAnnotations => {
                    for annotation in self.list(value, "a list of annotations")? {
                        let annotation = self.annotation(annotation)?;
                        self.out.external_annotations.push(annotation);
                    }
                }
                _ => {
                    let key = self.text(key, "a string as key")?;
                    if self.out.ignored_keys.len() < IGNORED_KEYS_LIMIT
                        && !self.out.ignored_keys.contains(&key)
                    {
                        self.out.ignored_keys.push(key);
                    }
                }
            }
        }
        if is_snapshot {
            return Ok(());
        }
        let problem = "a pickle without segments and device_traces is no memory snapshot";
        Err(TraceError::malformed(Format::TorchSnapshot, 0, problem))
    }

    fn segment(&mut self, node: Node<'p>) -> Result<Segment> {
        self.count_entry()?;
        let mut segment = Segment::default();
        let mut blocks = None;
        for (key, value) in self.dict(node, "a segment's dictionary")? {
            match self.key(key)? {
                Key::Device => segment.device = self.device(value)?,
                Key::Address => segment.address = self.number(value)?,
                Key::TotalSize => segment.bytes = self.number(value)?,
                Key::AllocatedSize => segment.allocated_bytes = self.number(value)?,
                Key::ActiveSize => segment.active_bytes = self.number(value)?,
                Key::RequestedSize => segment.requested_bytes = self.number(value)?,
                Key::Stream => segment.stream = self.number(value)?,
                Key::SegmentType => {
                    segment.kind = match value.as_str_bytes() {
                        Some(b"small") => SegmentKind::Small,
                        Some(b"large") => SegmentKind::Large,
                        _ => return Err(self.expected("\"small\" or \"large\"", value)),
                    }
                }
                Key::SegmentPoolId => segment.pool_id = self.pool_id(value)?,
                Key::IsExpandable => segment.is_expandable = matches!(value.view(), View::Bool(true)),
                Key::Frames => segment.stack = self.stack(value)?,
                Key::Blocks => blocks = Some(value),
                _ => {}
            }
        }
        if let Some(blocks) = blocks {
            // Blocks are side by side; those without an address of their own begin where the last one ended.
            let mut next_address = segment.address;
            for block in self.list(blocks, "a list of blocks")? {
                let block = self.block(block, next_address)?;
                next_address = block.address.wrapping_add(block.bytes);
                segment.blocks.push(block);
            }
        }
        Ok(segment)
    }

    fn block(&mut self, node: Node<'p>, address: u64) -> Result<Block> {
        self.count_entry()?;
        let mut requested_bytes = None;
        let (state, stack) = (BlockState::Inactive, LabelId::NONE);
        let mut block = Block { address, bytes: 0, requested_bytes: 0, state, stack };
        for (key, value) in self.dict(node, "a block's dictionary")? {
            match self.key(key)? {
                Key::Address => block.address = self.number(value)?,
                Key::Size => block.bytes = self.number(value)?,
                Key::RequestedSize => requested_bytes = Some(self.number(value)?),
                Key::State => {
                    block.state = match value.as_str_bytes() {
                        Some(b"active_allocated") => BlockState::Allocated,
                        Some(b"active_pending_free" | b"active_awaiting_free") => BlockState::PendingFree,
                        Some(b"inactive") => BlockState::Inactive,
                        _ => return Err(self.expected("a block's state", value)),
                    }
                }
                Key::Frames => block.stack = self.stack(value)?,
                _ => {}
            }
        }
        block.requested_bytes = requested_bytes.unwrap_or(block.bytes);
        Ok(block)
    }

    fn trace_entry(&mut self, node: Node<'p>) -> Result<TraceEntry> {
        self.count_entry()?;
        let mut action = None;
        let mut entry = TraceEntry {
            action: Action::Alloc,
            address: 0,
            bytes: 0,
            stream: 0,
            t_us: 0,
            stack: LabelId::NONE,
            compile_context: LabelId::NONE,
            user_metadata: LabelId::NONE,
            pool_id: None,
        };
        for (key, value) in self.dict(node, "a trace entry's dictionary")? {
            match self.key(key)? {
                Key::Action => action = Some(self.action(value)?),
                Key::Addr | Key::DeviceFree => entry.address = self.number(value)?,
                Key::Size => entry.bytes = self.number(value)?,
                Key::Stream => entry.stream = self.number(value)?,
                Key::TimeUs => entry.t_us = self.number(value)?,
                Key::Frames => entry.stack = self.stack(value)?,
                Key::CompileContext => entry.compile_context = self.remark(value, b"N/A")?,
                Key::UserMetadata => entry.user_metadata = self.remark(value, b"")?,
                Key::PoolId => {
                    let (owner, id) = self.pool_id(value)?;
                    entry.pool_id = u32::try_from(owner).ok().zip(u32::try_from(id).ok());
                }
                _ => {}
            }
        }
        entry.action = action.ok_or_else(|| self.expected("an action", node))?;
        Ok(entry)
    }

    fn annotation(&mut self, node: Node<'p>) -> Result<ExternalAnnotation> {
        self.count_entry()?;
        let mut annotation = ExternalAnnotation::default();
        for (key, value) in self.dict(node, "an annotation's dictionary")? {
            match self.key(key)? {
                Key::Device => annotation.device = self.device(value)?,
                Key::TimeUs => annotation.t_us = self.number(value)?,
                _ => {
                    let key = self.remark(key, b"")?;
                    // Annotations are texts; a value that is not is kept as it shows.
                    let text = match value.as_str_bytes() {
                        Some(_) => self.remark(value, b"")?,
                        None => self.out.names.text(&format!("{value:?}"))?,
                    };
                    annotation.texts.push((key, text));
                }
            }
        }
        Ok(annotation)
    }

    fn action(&mut self, node: Node<'p>) -> Result<Action> {
        let (actions, at) = (&mut self.actions, self.at);
        actions.get(node, || {
            let word = node.as_str_bytes();
            let known = Action::ALL.into_iter().find(|action| Some(action.word().as_bytes()) == word);
            let problem = || format!("no action of an allocator: {:?}", node.as_text().unwrap_or_default());
            known.ok_or_else(|| TraceError::malformed(Format::TorchSnapshot, at, problem()))
        })
    }

    /// A text as a label; none where it is `absent` or no text.
    fn remark(&mut self, node: Node<'p>, absent: &[u8]) -> Result<LabelId> {
        if node.as_str_bytes().is_none_or(|text| text == absent) {
            return Ok(LabelId::NONE);
        }
        let string = self.string(node, "a text")?;
        self.out.names.text_of(string)
    }

    fn stack(&mut self, node: Node<'p>) -> Result<LabelId> {
        let frames = self.list(node, "a list of frames")?;
        let index = node.container_index().unwrap_or(usize::MAX);
        if let Some(&label) = self.by_container.get(index)
            && label != 0
        {
            return Ok(LabelId(label));
        }
        let frames: Result<Vec<FrameId>> = frames.map(|frame| self.frame(frame)).collect();
        let label = self.out.names.stack(&frames?)?;
        self.by_container[index] = label.0;
        Ok(label)
    }

    fn frame(&mut self, node: Node<'p>) -> Result<FrameId> {
        let pairs = self.dict(node, "a frame's dictionary")?;
        let index = node.container_index().unwrap_or(usize::MAX);
        if let Some(&known) = self.by_container.get(index)
            && known != 0
        {
            return Ok(FrameId(known - 1));
        }
        let (mut file, mut line, mut function) = (None, 0, None);
        for (key, value) in pairs {
            match self.key(key)? {
                Key::Filename => file = Some(self.string(value, "a file's name")?),
                Key::Line => line = u32::try_from(self.number(value)?).unwrap_or(0),
                Key::Name => function = Some(self.string(value, "a function's name")?),
                _ => {}
            }
        }
        let nameless = self.out.names.string("")?;
        let frame = self.out.names.frame_of(file.unwrap_or(nameless), line, function.unwrap_or(nameless))?;
        self.by_container[index] = frame.0 + 1;
        Ok(frame)
    }

    /// A setting as JSON; settings are at most dictionaries of scalars, so nesting stops early.
    fn setting(&mut self, node: Node<'p>, depth: u32) -> Result<Json> {
        self.count_entry()?;
        Ok(match node.view() {
            View::None => Json::Null,
            View::Bool(value) => value.into(),
            View::Int(number) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => number.into(),
                (_, Ok(number)) => number.into(),
                _ => Json::Null,
            },
            View::Float(number) => serde_json::Number::from_f64(number).map_or(Json::Null, Json::Number),
            View::Str(_) => self.text(node, "a setting")?.into(),
            View::Bytes(_) => return Err(self.expected("a setting", node)),
            View::List(_) | View::Tuple(_) | View::Dict(_) if depth >= 4 => {
                return Err(self.expected("a setting nested less than 4 deep", node));
            }
            View::List(items) | View::Tuple(items) => {
                let items: Result<Vec<Json>> = items.map(|item| self.setting(item, depth + 1)).collect();
                items?.into()
            }
            View::Dict(pairs) => {
                let mut map = Map::new();
                for (key, value) in pairs {
                    let key = match key.as_i64() {
                        Some(number) => number.to_string(),
                        None => self.text(key, "a setting's name")?,
                    };
                    map.insert(key, self.setting(value, depth + 1)?);
                }
                map.into()
            }
        })
    }

    fn count_entry(&mut self) -> Result<()> {
        self.entries += 1;
        // Settings are scalars, hence the allowance.
        let limit = self.entries_limit.saturating_add(1000);
        if self.entries > limit {
            let (format, what) = (Format::TorchSnapshot, "the number of entries (the file repeats some)");
            return Err(TraceError::Limit { format, offset: self.at, what, limit });
        }
        Ok(())
    }

    fn key(&mut self, node: Node<'p>) -> Result<Key> {
        self.keys.get(node, || Ok(node.as_str_bytes().map_or(Key::Other, Key::of)))
    }

    fn dict(&mut self, node: Node<'p>, what: &str) -> Result<Pairs<'p>> {
        match node.view() {
            View::Dict(pairs) => {
                self.at = node.container_offset().unwrap_or(self.at);
                Ok(pairs)
            }
            _ => Err(self.expected(what, node)),
        }
    }

    fn list(&self, node: Node<'p>, what: &str) -> Result<Items<'p>> {
        match node.view() {
            View::List(items) | View::Tuple(items) => Ok(items),
            _ => Err(self.expected(what, node)),
        }
    }

    /// A number of 64 bits. PyTorch writes addresses and streams as signed ones.
    #[inline]
    fn number(&self, node: Node<'p>) -> Result<u64> {
        match (node.as_i64(), node.view()) {
            (Some(number), _) => Ok(number as u64),
            (None, View::Int(number)) => Ok(number as u64),
            _ => Err(self.expected("a number", node)),
        }
    }

    fn device(&self, node: Node<'p>) -> Result<u8> {
        let device = node.as_i64().and_then(|device| u8::try_from(device).ok());
        device.ok_or_else(|| self.expected("a device from 0 to 255", node))
    }

    fn pool_id(&self, node: Node<'p>) -> Result<(u64, u64)> {
        let mut numbers = self.list(node, "a pool's two numbers")?.map(|number| self.number(number));
        match (numbers.next(), numbers.next()) {
            (Some(owner), Some(id)) => Ok((owner?, id?)),
            _ => Err(self.expected("a pool's two numbers", node)),
        }
    }

    /// A string of the table. A file may refer to one long string from many frames, so it is looked at once.
    fn string(&mut self, node: Node<'p>, what: &str) -> Result<u32> {
        if let Some(&known) = self.strings.get(&node.value()) {
            return Ok(known);
        }
        let Some(text) = node.as_text() else { return Err(self.expected(what, node)) };
        let string = self.out.names.string(&text)?;
        self.strings.insert(node.value(), string);
        Ok(string)
    }

    /// A string that is copied, and therefore short.
    fn text(&self, node: Node<'p>, what: &str) -> Result<String> {
        let short = node.as_text().filter(|text| text.len() <= COPIED_TEXT_LIMIT_BYTES);
        short.map(std::borrow::Cow::into_owned).ok_or_else(|| self.expected(what, node))
    }
}
