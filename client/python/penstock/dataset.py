"""A dataset spec written in Python: the content of a YAML file as a call chain.

    dataset = (penstock.Dataset.image_folder("/data/imagenet/train")
               .shuffle(seed=42)
               .map(penstock.decode_image(size=224, crop=penstock.random_resized()),
                    penstock.flip(horizontal=0.5),
                    penstock.normalize(mean=..., std=..., dtype="float16"))
               .batch(2048)
               .repeat(90))

Each step returns a new Dataset. Nothing is read here, and only types are checked (a
TypeError names the argument): the broker
checks a spec at the attach (``penstock check`` does so at any time), and its errors
name the key (``spec: map[0].cast.dtype: ...``). None stands for the spec's default,
below in parentheses; common/spec/ documents the format.

A spec has no order of its steps, but for those of ``map`` and those that select
records. So a selection that tf.data would make of something else, such as ``take``
after ``batch``, or a second ``repeat``, is an InvalidArgument that says what to write.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from penstock.arguments import checked_class
from penstock.errors import InvalidArgument
from penstock.operations import Operation
from penstock.spec_values import (Files, Path, absolute, absolute_files, dtype_name,
                                  features_of, given, optional_dtype, plain)

# What to write instead of a second call of a step that a spec has once.
_INSTEAD_OF_A_SECOND = {
    "shuffle": "it shuffles all records, so one is enough",
    "cache": "a dataset has one cache: at=N says behind which step of map",
    "snapshot": "a dataset has one snapshot: at=N says behind which step of map",
    "batch": "for batches of batches take batch(32) and batch['x'].reshape(4, 8, ...)",
    "repeat": "for 3 times 2 epochs call repeat(6)",
}


@checked_class
class Dataset:
    """An immutable dataset spec. The class methods are its sources: ``name`` is what
    the broker calls the dataset, and relative paths start at the working directory.
    ``io``: how files are read."""

    _called: Tuple[str, ...] = ()  # the steps of this chain whose place counts

    def __init__(self, spec: Mapping[str, Any]):
        """``spec``: the content of a spec file, as ``yaml.safe_load`` reads it. Steps
        replace what it says, as they do after ``from_file``."""
        self._spec = dict(spec)

    def _with(self, **values: Any) -> "Dataset":
        dataset = Dataset({**self._spec, **given(**values)})
        dataset._called = self._called
        return dataset

    def _with_step(self, step: str, values: Any, key: Optional[str] = None) -> "Dataset":
        """As ``_with``, of a step that comes once in a chain; ``key``: in the spec."""
        if step in self._called:
            raise InvalidArgument(
                f"{step} is called a second time and would replace the first: "
                f"{_INSTEAD_OF_A_SECOND[step]}; to change what a dataset says, "
                f"penstock.Dataset(dataset.to_dict()).{step}(...)")
        dataset = self._with(**{key or step: values})
        dataset._called = (*self._called, step)
        return dataset

    @classmethod
    def _of(cls, source: str, value: Any, name: Optional[str]) -> "Dataset":
        return cls({"dataset": name or source.replace("_", "-"),
                    "source": {source: plain(value)}})

    # ---- sources

    @classmethod
    def image_folder(cls, path: Path, *, labels: Optional[str] = None,
                     masks: Optional[Mapping[str, Any]] = None,
                     max_path_bytes: Optional[int] = None,
                     io: Optional[str] = None,
                     name: Optional[str] = None) -> "Dataset":
        """Pictures (JPEG, PNG, WebP, TIFF, BMP, PGM, PPM) in one sub-folder per class,
        also nested.
        Features: ``image`` (encoded), ``label`` int64 []: the index of the class
        folder in byte order. ``labels``: "none" takes all pictures in the folder, at
        any depth, and gives no label. ``masks``: ``penstock.masks(...)``, which adds
        ``mask`` (encoded). ``max_path_bytes``: room for ``path``, a text: that of the file,
        below the folder."""
        return cls._of("image_folder", given(
            path=absolute(path), labels=labels, masks=masks, max_path_bytes=max_path_bytes,
            io=io), name)

    @classmethod
    def audio_folder(cls, path: Path, *, labels: Optional[str] = None,
                     max_path_bytes: Optional[int] = None,
                     io: Optional[str] = None,
                     name: Optional[str] = None) -> "Dataset":
        """Sounds (WAV, FLAC, MP3, Ogg, Opus, AIFF and others) as ``image_folder`` has
        pictures. Features: ``audio`` (encoded), which ``penstock.decode_audio``
        decodes, and ``label``."""
        return cls._of("audio_folder", given(
            path=absolute(path), labels=labels, max_path_bytes=max_path_bytes, io=io), name)

    @classmethod
    def image_list(cls, file: Path, columns: Mapping[str, Any], *,
                   folder: Optional[Path] = None, delimiter: Optional[str] = None,
                   header: Optional[bool] = None, longer: Optional[str] = None,
                   on_missing: Optional[str] = None, io: Optional[str] = None,
                   name: Optional[str] = None) -> "Dataset":
        """Pictures (or sounds) that a file of comma-separated values names, a sample per
        row, in its order. ``columns``: {name: {"encoded": True}} of the path of one,
        {name: {"classes": True}} of a class's name, which becomes its number in byte
        order of all names (or in a list: {"classes": ["cat", "dog"]}), and numbers
        and text as in ``csv``, with "column". Paths are below ``folder``; if None,
        beside the file. ``on_missing``: "error", or "skip" rows whose picture is not
        there."""
        return cls._of("image_list", given(
            file=absolute(file), columns=features_of(columns),
            folder=None if folder is None else absolute(folder),
            delimiter="tab" if delimiter == "\t" else delimiter, header=header,
            longer=longer, on_missing=on_missing, io=io), name)

    @classmethod
    def coco(cls, annotations: Path, images: Path, *, labels: Optional[str] = None,
             crowd: Optional[str] = None, segmentation: Optional[bool] = None,
             max_length: Optional[int] = None, longer: Optional[str] = None,
             on_missing: Optional[str] = None, io: Optional[str] = None,
             name: Optional[str] = None) -> "Dataset":
        """Pictures of the folder ``images`` and the boxes in them, of a file of COCO's
        instances, in the order of their ids, as torchvision's ``CocoDetection``.
        Features: ``image`` (encoded), ``boxes`` float32 [max_length, 4] (corners),
        ``labels`` int64, ``area`` float32 and ``iscrowd`` bool [max_length], each with
        its ``.length``, and ``image_id`` int64 []. ``labels``: categories numbered in the
        order of their ids, "from_0", "from_1" (0 is the background) or the "ids".
        ``crowd``: "keep" or "drop".
        ``segmentation``: also the masks, uint8 [n] and ``segmentation_bytes``: the JSON
        list of each object's polygons or RLE, as pycocotools takes them. ``max_length``:
        room for boxes (the most of a picture); ``longer``: "fail" or "cut" more.
        ``on_missing``: as in ``image_list``."""
        return cls._of("coco", given(
            annotations=absolute(annotations), images=absolute(images),
            labels=labels, crowd=crowd, segmentation=segmentation,
            max_length=max_length, longer=longer, on_missing=on_missing, io=io), name)

    @classmethod
    def idx(cls, images: Path, labels: Optional[Path] = None, *,
            io: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """Files in MNIST's format, plain or gzip. Features: ``image``, and
        ``label`` int64 [] if ``labels`` is given."""
        return cls._of("idx", given(
            images=absolute(images),
            labels=None if labels is None else absolute(labels), io=io), name)

    @classmethod
    def fixed_length_records(
            cls, files: Files,
            features: Mapping[str, Any], *,
            header_bytes: Optional[int] = None,
            footer_bytes: Optional[int] = None, io: Optional[str] = None,
            name: Optional[str] = None) -> "Dataset":
        """Records of one or several files. ``features``: {name: {"dtype": ...,
        "shape": [...]}} in the order of a record, little-endian, without gaps;
        ``header_bytes``, ``footer_bytes``: skipped in each file."""
        return cls._of("fixed_length_records", given(
            files=absolute_files(files), features=features_of(features),
            header_bytes=header_bytes, footer_bytes=footer_bytes, io=io), name)

    @classmethod
    def text_lines(cls, files: Files, max_bytes: int, *,
                   longer: Optional[str] = None,
                   name: Optional[str] = None) -> "Dataset":
        """Lines of one or several text files. Features: ``text`` uint8 [max_bytes],
        filled with zeros, and ``bytes`` int64 []: how many are the line's.
        ``longer``: "fail" or "cut" a line of more."""
        return cls._of("text_lines", given(files=absolute_files(files),
                                            max_bytes=max_bytes, longer=longer), name)

    @classmethod
    def json_lines(cls, files: Files,
                   fields: Mapping[str, Any], *, longer: Optional[str] = None,
                   name: Optional[str] = None) -> "Dataset":
        """Values of JSON documents, one a line. ``fields``: {name: {"dtype": ...,
        "shape": [...]}} (or a ``TensorSpec``) for numbers, {name: {"max_bytes": ...}}
        for text, which becomes ``name`` uint8 [max_bytes], filled with zeros, and
        ``name_bytes`` int64 [], {name: {"dtype": ..., "max_length": ...}} for lists of
        any length, each item of "shape", which become ``name`` [max_length, *shape] and
        ``name.length`` int64 []. "json": True takes the JSON of a list or an object as
        text. "pointer" tells where it is (RFC 6901: "/meta/0/x"; "/name" if not given), "default" what it is where it is missing or null.
        ``longer``: "fail" or "cut" longer text and lists."""
        return cls._of("json_lines", given(
            files=absolute_files(files), fields=features_of(fields), longer=longer),
            name)

    @classmethod
    def csv(cls, files: Files, columns: Mapping[str, Any], *,
            delimiter: Optional[str] = None, header: Optional[bool] = None,
            longer: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """Columns of files of comma-separated values (RFC 4180). ``columns``: {name:
        {"dtype": ...}} for numbers, {name: {"max_bytes": ...}} for text, as in
        ``json_lines``. "column" is its name in the header (name if not given), or its
        number from 0 with ``header`` False; "default" what an empty value is.
        ``delimiter``: a character, or "tab"."""
        return cls._of("csv", given(
            files=absolute_files(files), columns=features_of(columns),
            delimiter="tab" if delimiter == "\t" else delimiter, header=header,
            longer=longer), name)

    @classmethod
    def tokens(cls, files: Files, sequence_length: Optional[int] = None, *,
               documents: Optional[Mapping[str, int]] = None,
               dtype: Any = None, header_bytes: Optional[int] = None,
               stride: Optional[int] = None, targets: Optional[str] = None,
               output_dtype: Any = None, io: Optional[str] = None,
               name: Optional[str] = None) -> "Dataset":
        """Sequences of tokens from flat files: raw, as nanoGPT's and OLMo's, .npy with
        one dimension, or with the header of llm.c and modded-nanogpt.
        Features: ``input`` [sequence_length] and ``target`` (the token after each),
        or only ``input`` with ``targets`` "none".

        ``documents``, instead of ``sequence_length``: {"end": 50256}, the token that
        documents end with, or {"begin": 50256}: rows are documents, ``tokens`` and
        ``tokens.length``, for ``penstock.pack``. Beside it "max_length", the room for
        tokens, which the parts of a mix need alike; the longest document's if absent.

        ``dtype``: of the tokens in the files ("uint16", "uint32", "int32",
        "int64"); .npy and llm.c's files say it, of others it is uint16 if None.
        ``header_bytes``: skipped in each file that is not .npy. ``stride``: tokens
        from the start of a sequence to that of the next (sequence_length if None).
        ``output_dtype``: "int64" or "int32". A sequence never crosses from a file to
        the next; the tokens after the last whole sequence are left out."""
        return cls._of("tokens", given(
            files=absolute_files(files), sequence_length=sequence_length,
            documents=None if documents is None else dict(documents),
            dtype=optional_dtype(dtype), header_bytes=header_bytes, stride=stride,
            targets=targets, output_dtype=optional_dtype(output_dtype), io=io), name)

    @classmethod
    def megatron(cls, prefix: Union[Path, List[Any]],
                 sequence_length: Optional[int] = None, *,
                 samples: Optional[int] = None, split: Optional[str] = None,
                 use: Optional[str] = None, order: Optional[str] = None,
                 seed: Optional[int] = None, cache: Optional[Path] = None,
                 features: Optional[Sequence[str]] = None,
                 vocab_size: Optional[int] = None,
                 gpt_config: Optional[Mapping[str, Any]] = None,
                 io: Optional[str] = None,
                 name: Optional[str] = None) -> "Dataset":
        """The samples of Megatron's ``GPTDataset``, bit for bit, from ``prefix``.bin
        and .idx; of its ``BlendedDataset``, where ``prefix`` is a list of prefixes or
        of (weight, prefix). Features: ``tokens`` and ``labels`` int64
        [sequence_length], or those of ``features``, also "loss_mask", "position_ids"
        and "dataset_id". With ``sequence_length`` None the rows are the documents of one
        prefix, ``tokens`` and ``tokens.length``, for ``penstock.pack``.

        Row n is Megatron's sample n: no ``shuffle``, and ``.batch(per_rank=
        micro_batch_size, last="drop")``. ``samples``: train_iters *
        global_batch_size; None: those of one pass. ``split``: such as "969,30,1";
        None: all documents, as with --train-data-path. ``use``: "train", "valid" or
        "test". ``seed``: Megatron's, 1234 if None. ``cache``: its path_to_cache, to
        take its indices from there. ``gpt_config``: ``penstock.gpt_config(...)``.

        ``order`` "cyclic": its ``--dataloader-type cyclic``; "cyclic_unsharded": with
        ``--no-data-sharding``. "penstock": windows of the documents as they lie in the
        file, one pass, for ``.shuffle``; nothing is built."""
        def part(one: Any) -> Any:
            return ([float(one[0]), absolute(one[1])] if isinstance(one, (list, tuple))
                    else absolute(one))
        blend = [part(each) for each in prefix] if isinstance(prefix, list) else None
        return cls._of("megatron", given(
            prefix=None if isinstance(prefix, list) else absolute(prefix), blend=blend,
            sequence_length=sequence_length, samples=samples, split=split, use=use,
            order=order, seed=seed, cache=None if cache is None else absolute(cache),
            features=None if features is None else list(features),
            vocab_size=vocab_size, gpt_config=gpt_config, io=io), name)

    @classmethod
    def npy(cls, features: Mapping[str, Files], *,
            io: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """Rows of arrays that ``numpy.save`` wrote, along their first axis.
        ``features``: {name: files, whose arrays follow one another}; all
        features have as many rows. The largest rows are read, others kept in memory
        while they have at most 64 MiB together."""
        return cls._of("npy", given(
            features={key: absolute_files(files) for key, files in features.items()},
            io=io), name)

    @classmethod
    def npz(cls, file: Path, features: Mapping[str, str], *,
            io: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """Rows of the arrays in a file of ``numpy.savez`` or
        ``numpy.savez_compressed``, along their first axis. ``features``: {name: the
        name of an array}; as in ``npy``."""
        return cls._of("npz", given(file=absolute(file), features=dict(features),
                                     io=io), name)

    @classmethod
    def tfrecord(cls, files: Files,
                 features: Optional[Mapping[str, Any]] = None, *,
                 io: Optional[str] = None,
                 name: Optional[str] = None) -> "Dataset":
        """TFRecord files of tf.train.Example. ``features``: {name: {"encoded": True}}
        of a picture, {"dtype": ..., "shape": [...], "default": ...} of numbers or raw
        bytes, {"max_bytes": ...} of text, which brings ``name_bytes`` int64 [],
        {"dtype": ..., "max_length": ..., "shape": [...]} of a list of any length, which
        brings ``name.length`` int64 []; of these two "longer": "fail" or "cut"; each
        with "key", its name in the record. Without them an error proposes them."""
        return cls._of("tfrecord", given(
            files=absolute_files(files),
            features=None if features is None else features_of(features), io=io),
            name)

    @classmethod
    def webdataset(cls, files: Files,
                   features: Optional[Mapping[str, Any]] = None, *,
                   extension: Optional[str] = None,
                   on_missing: Optional[str] = None, io: Optional[str] = None,
                   name: Optional[str] = None) -> "Dataset":
        """Tar files whose members of one base name are a sample. ``features``: as in
        ``tfrecord``, with "member" for "key": its extension, a pattern ("*.jpg"), or
        several by preference ("jpg;png"); "pointer": where a JSON member has it
        ("/label"). ``extension``: where it begins in a name, at its "first_dot" or
        "last_dot". ``on_missing``: "error", or "skip" samples that lack one."""
        return cls._of("webdataset", given(
            files=absolute_files(files),
            features=None if features is None else features_of(features),
            extension=extension, on_missing=on_missing, io=io), name)

    @classmethod
    def mds(cls, path: Path, features: Optional[Mapping[str, Any]] = None, *,
            verify: Optional[bool] = None, io: Optional[str] = None,
            name: Optional[str] = None) -> "Dataset":
        """A folder that MosaicML Streaming's ``MDSWriter`` wrote. ``features``: {name: {}} of a column whose size index.json tells, else
        as in ``tfrecord``, with "column" for "key"; "item": which picture of several.
        Without them every column, or an error proposes them. ``verify``: compares
        the shards' xxHash when the dataset is opened."""
        return cls._of("mds", given(
            path=absolute(path),
            features=None if features is None else features_of(features),
            verify=verify, io=io), name)

    @classmethod
    def lmdb(cls, files: Files, features: Optional[Mapping[str, Any]] = None, *,
             database: Optional[str] = None, on_missing: Optional[str] = None,
             io: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """LMDB files, or their folders. ``features``: as in ``webdataset``, with
        "key" for "member": a key with one ``*`` ("image-*", "label-*"; "*" if there is
        none), which stands for what the keys of a sample have in common. The samples are
        the keys of the first feature. Without them an error proposes them.
        ``database``: one with a name, else the main one."""
        return cls._of("lmdb", given(
            files=absolute_files(files),
            features=None if features is None else features_of(features),
            database=database, on_missing=on_missing, io=io), name)

    @classmethod
    def parquet(cls, files: Files,
                columns: Union[str, Sequence[str], None] = None, *,
                max_length: Optional[Mapping[str, int]] = None,
                max_bytes: Optional[int] = None,
                default: Optional[Mapping[str, Any]] = None,
                longer: Optional[str] = None,
                processes: Optional[int] = None,
                name: Optional[str] = None) -> "Dataset":
        """Rows of Parquet and Arrow files (Hugging Face's cache files too), which
        processes of the broker read with pyarrow, only ``columns`` (all if None) of
        them; a field of a struct is "image.bytes". Bytes are an encoded picture.
        ``max_length``: {NAME: n}, lists that differ in length, or bytes that are no
        picture: NAME has room for n, and NAME.length int64 [] says how many are the
        row's. Other lists have the shape of the first one. ``max_bytes``: room for a
        text, which brings NAME_bytes int64 []. ``default``: {NAME: a number, a text,
        or []} for null, else an error of the sample. ``longer``: "fail" or "cut" longer
        texts and lists."""
        return cls._of("parquet", given(
            files=absolute_files(files), columns=columns,
            max_length=None if max_length is None else dict(max_length),
            max_bytes=max_bytes, default=None if default is None else dict(default),
            longer=longer, processes=processes), name)

    @classmethod
    def python(cls, dataset: Optional[str] = None, *,
               args: Optional[Mapping[str, Any]] = None,
               object: Optional[Path] = None,
               names: Union[str, Sequence[str], None] = None,
               max_bytes: Optional[int] = None,
               max_length: Optional[Mapping[str, int]] = None,
               longer: Optional[str] = None,
               processes: Optional[int] = None,
               name: Optional[str] = None) -> "Dataset":
        """A map-style dataset: ``dataset`` is "package.module:factory" in the
        broker's python_path, called with ``args``, whose result has ``__len__`` and
        ``__getitem__``. Features are named by the keys, fields and indices of a
        sample (``image``, ``0``, ``1.boxes``); ``names``: of a tuple's items. A str
        has two: its UTF-8 bytes, uint8 [max_bytes], filled with zeros, and
        NAME_bytes int64 []. ``max_length``: {NAME: n}, arrays and lists whose first
        dimension differs from sample to sample: NAME has room for n, and NAME.length
        int64 [] says how many are the row's. ``longer``: "fail" or "cut" longer ones
        and longer texts. Processes of the broker make the samples: ``processes``
        (0: one per worker). ``object``: instead of ``dataset``, the file of a
        pickled one, as ``penstock.torch.DataLoader`` writes it for a private
        broker."""
        return cls._of("python", given(
            dataset=dataset, args=args,
            object=None if object is None else absolute(object), names=names,
            max_bytes=max_bytes,
            max_length=None if max_length is None else dict(max_length),
            longer=longer, processes=processes), name)

    @classmethod
    def range(cls, start: int, stop: Optional[int] = None, step: int = 1, *,
              name: Optional[str] = None) -> "Dataset":
        """Feature ``value`` int64 []: the numbers of Python's range."""
        if stop is None:
            start, stop = 0, start
        return cls._of("range", {"start": start, "stop": stop, "step": step},
                       name)

    @classmethod
    def tensors(cls, features: Mapping[str, Any], *,
                repeat: Optional[int] = None,
                name: Optional[str] = None) -> "Dataset":
        """Small arrays or nested lists, [rows, *shape] each, held by the spec
        (64 KiB in all). NumPy arrays keep their dtype; lists become int64, bool
        or float32."""
        values = {
            key: ({"dtype": dtype_name(value.dtype), "values": value.tolist()}
                  if hasattr(value, "dtype") else value)
            for key, value in features.items()}
        return cls._of("tensors", given(features=values, repeat=repeat), name)

    @classmethod
    def synthetic(cls, records: int, features: Mapping[str, Any],
                  *, cost_us: Optional[float] = None,
                  name: Optional[str] = None) -> "Dataset":
        """Generated records; ``cost_us``: microseconds of CPU time spent on each."""
        return cls._of("synthetic", given(records=records,
                                           features=features_of(features),
                                           cost_us=cost_us), name)

    @classmethod
    def stream(cls, features: Mapping[str, Any], *,
               producers: Optional[int] = None,
               name: Optional[str] = None) -> "Dataset":
        """Rows that ``penstock.producer`` puts; ``features``: its
        ``element_spec``. Ends when ``producers`` (1) of them have finished, or all
        that were at work at once. Read once, in the order of the puts: no
        shuffle, repeat or seek."""
        return cls._of("stream", given(features=features_of(features),
                                        producers=producers), name)

    @classmethod
    def concat(cls, parts: Sequence["Dataset"], *,
               name: Optional[str] = None) -> "Dataset":
        """The records of several datasets with the same features, one after the other.
        Of each part its source, what it selects and its ``map`` count, which makes the
        same features of all; the rest is said of the whole. ValueError: a part says
        more."""
        _check_list(parts, "concat([a, b])")
        return cls._of("concat", {"parts": [_part(part, "map") for part in parts]},
                       name)._with(**_by_part(parts))

    @classmethod
    def mix(cls, parts: Sequence["Dataset"],
            weights: Optional[Sequence[float]] = None, *,
            when_out: Optional[str] = None,
            schedule: Optional[Mapping[int, Sequence[float]]] = None,
            block: Optional[int] = None,
            name: Optional[str] = None) -> "Dataset":
        """Records of several datasets with the same features, in proportion to their
        weights (1 each): of any number of rows each part has its share, less than one
        row more or less. ``shuffle`` shuffles each part alone. ``when_out``, when a part
        has no more records: "stop" ends the pass; "drop": the others go on, until all
        records came once; "repeat": it begins anew, until each part was complete once.
        ``schedule``: other weights by the row of the pass from which on they hold.
        ``block`` (1): so many rows at a time are of one part; with the size of a batch,
        each batch is of one part.

        Parts as in ``concat``. Parts with a ``batch(size)`` are mixed batch by batch: each
        batch is of one part and has its size, weights are shares of the batches, and the
        shapes of features may differ between parts."""
        _check_list(parts, "mix([a, b], [0.7, 0.3])")
        if weights is None:
            weights = [1] * len(parts)
        if len(weights) != len(parts):
            raise ValueError(f"{len(weights)} weights for {len(parts)} parts")
        return cls._of("mix", given(
            parts=[{**_part(part, "map", "batch"), "weight": weight}
                   for part, weight in zip(parts, weights)],
            when_out=when_out, block=block,
            schedule=None if schedule is None else _schedule(schedule)),
            name)._with(**_by_part(parts))

    @classmethod
    def zip(cls, parts: Sequence["Dataset"],
            prefixes: Optional[Sequence[Optional[str]]] = None, *,
            by: Optional[str] = None, on_missing: Optional[str] = None,
            name: Optional[str] = None) -> "Dataset":
        """Records made of one record of each of several datasets, as tf.data's zip:
        record i has the features of record i of each; it ends with the shortest.
        ``prefixes``: what the names of the features of each part begin with. ``by``: a
        join: each record of the first part, with those of the others that have the same
        number or text in this feature (before its prefix). ``on_missing``: "error", or
        "skip" records of the first part without such a one."""
        _check_list(parts, "zip([a, b])")
        if prefixes is not None and len(prefixes) != len(parts):
            raise ValueError(f"{len(prefixes)} prefixes for {len(parts)} parts")
        return cls._of("zip", {"parts": [
            {**_part(part), **given(prefix=prefixes[i] if prefixes else None)}
            for i, part in enumerate(parts)], **given(by=by, on_missing=on_missing)}, name)

    @classmethod
    def from_file(cls, path: Path) -> "Dataset":
        """Reads a spec file, to be changed; its relative paths become absolute.
        InvalidArgument: not a spec."""
        from penstock import spec_file

        spec = spec_file.read(os.fsdecode(path))
        folder = os.path.dirname(absolute(path))

        def found_from_here(value: Any) -> Any:
            if isinstance(value, list):
                return [found_from_here(each) for each in value]
            if isinstance(value, dict):
                return {key: found_from_here(each) for key, each in value.items()}
            # The broker refuses "~" and says what to write.
            if not isinstance(value, str) or value.startswith("~"):
                return value
            return os.path.join(folder, value)

        def find(source: Any) -> None:
            for kind, options in source.items() if isinstance(source, dict) else ():
                if not isinstance(options, dict):
                    continue
                # The labels of image_folder are no file.
                options.update({key: found_from_here(options[key])
                                for key in ("files", "path", "file", "folder", "object",
                                            "images", "labels", "prefix", "blend", "cache")
                                if key in options and (key != "labels" or kind == "idx")})
                find({"masks": options.get("masks")})
                if kind == "npy" and isinstance(options.get("features"), dict):
                    options["features"] = {
                        key: found_from_here(files)
                        for key, files in options["features"].items()}
                parts = options.get("parts")
                for part in parts if isinstance(parts, list) else ():
                    if isinstance(part, dict):
                        find(part.get("source"))
                        find_selected(part.get("select"))

        def find_selected(steps: Any) -> None:
            for step in steps if isinstance(steps, list) else ():
                for name in ("filter", "exclude") if isinstance(step, dict) else ():
                    selected = step.get(name)
                    if isinstance(selected, dict) and "records" in selected:
                        selected["records"] = found_from_here(selected["records"])
                    elif name == "exclude" and name in step:
                        step[name] = found_from_here(selected)

        find(spec.get("source"))
        find_selected(spec.get("select"))
        return cls(spec)

    # ---- steps

    def named(self, name: str) -> "Dataset":
        """Sets the dataset's name; all ranks of a job must agree."""
        return self._with(dataset=name)

    # ---- which records a pass has: each step selects of what the one before left.
    # They select records, so they come before ``batch``, and those that go by position
    # (take, skip, shard, interleave) before ``shuffle`` and ``repeat`` too.

    def take(self, records: int) -> "Dataset":
        """Selects the first records; all if there are fewer."""
        return self._select(take=records)

    def skip(self, records: int) -> "Dataset":
        """Selects all but the first records."""
        return self._select(skip=records)

    def filter(self, column: Union[str, Callable[[Dict[str, Any]], Any], None] = None,
               *, include: Optional[Sequence[Any]] = None,
               exclude: Optional[Sequence[Any]] = None,
               min: Optional[float] = None, max: Optional[float] = None,
               matches: Optional[str] = None,
               records: Optional[Path] = None) -> "Dataset":
        """Selects records by a column, a function, or a file of ``penstock filter``.

        A column is a number or a text of the source, or ``class``, ``path``, ``file``
        or ``bytes`` (an error names those that there are). One that is in the records
        is read from all of them when the dataset is first opened. Its value is one of
        ``include``, none of ``exclude``, within ``min`` and ``max``, matches a pattern
        of * and ?; all that is given.

        A function gets a row as a dict of arrays, as the steps of ``map`` so far make
        it (none of which may be random), and returns True or False. Processes of a
        private broker ask it of each record that is selected so far, once, in this
        call, with a progress bar on a terminal; its answers are kept in the cache
        folder for as long as data and function are the same. An exception of it is an
        error that names the sample; after ``on_error("skip")`` such a sample is left
        out, with a warning.

        ``records``: a file that ``penstock filter`` has written."""
        if column is None or callable(column):
            if (column is None) == (records is None):
                raise TypeError("wanted one of: a column, a function, records")
            if any(each is not None for each in (include, exclude, min, max, matches)):
                raise TypeError("include, exclude, min, max and matches are of a column")
            if column is not None:
                from penstock import predicate

                records = predicate.kept_records(self.to_dict(), column)
            assert records is not None
            return self._select(filter={"records": absolute(records)})
        if not isinstance(column, str) or records is not None:
            raise TypeError("wanted one of: a column, a function, records")
        values = {key: None if each is None else [str(value) for value in each]
                  for key, each in (("in", include), ("except", exclude))}
        return self._select(filter=given(column=column, min=min, max=max,
                                          matches=matches, **values))

    def exclude(self, records: Path) -> "Dataset":
        """Selects all records but those of a list: a file of ``penstock check --all``,
        or one written by hand, with the number of a record of the source at the
        beginning of each line. It goes by number, so it comes first."""
        return self._select(exclude=absolute(records))

    def balance(self, by: str, weights: Optional[Mapping[Any, float]] = None, *,
                when_out: Optional[str] = None) -> "Dataset":
        """As many rows of each value of a column (see ``filter``), or in proportion to
        ``weights`` (those that are not named have 1). ``when_out``, when a value has no
        more records: "repeat" begins it anew until each was complete once, "stop",
        "drop", as in ``mix``."""
        return self._select(balance=given(
            by=by, when_out=when_out, weights=_weights_by_value(weights)))

    def sample(self, rows: Optional[int] = None, *, weight: Optional[str] = None,
               by: Optional[str] = None,
               weights: Optional[Mapping[Any, float]] = None,
               replacement: bool = True, seed: int = 0) -> "Dataset":
        """Draws ``rows`` records (as many as there are) anew in each epoch, as
        PyTorch's WeightedRandomSampler: in proportion to the numbers in the column
        ``weight``, or to the ``weights`` of the values of the column ``by`` (those that
        are not named have 1), or evenly. Without ``replacement`` each comes once at
        most."""
        return self._select(sample=given(
            rows=rows, weight=weight, by=by, replacement=replacement, seed=seed,
            weights=_weights_by_value(weights)))

    def interleave(self, files: int = 16, block: int = 1) -> "Dataset":
        """Takes ``block`` records of each of ``files`` files in turn, as tf.data does
        with files: an order for data that are not shuffled."""
        return self._select(interleave=given(files=files, block=block))

    def shard(self, of: int, index: int, by: Optional[str] = None) -> "Dataset":
        """Selects every ``of``-th record from ``index`` on, as tf.data does; with
        ``by`` every ``of``-th value of that column with all its records, for example
        ``by="file"``."""
        return self._select(shard=given(index=index, of=of, by=by))

    def times(self, times: int) -> "Dataset":
        """Selects all records several times in one pass, each time with random
        numbers of augmentation of its own."""
        return self._select(repeat=times)

    def split(self, part: str, of: Mapping[str, float], seed: int = 0,
              by: Optional[str] = None) -> "Dataset":
        """Selects one of several parts that have no record in common: ``of`` has the
        fraction of each, such as {"train": 0.9, "validation": 0.1}. ``by``: records with
        one value of this column stay together, also when others are added."""
        return self._select(split=given(of=dict(of), part=part, seed=seed, by=by))

    def fold(self, number: int, of: int = 5, part: str = "train",
             seed: int = 0, by: Optional[str] = None) -> "Dataset":
        """Selects for k-fold cross-validation: with ``part="validation"`` the records
        of this fold, with "train" all others. ``by``: as in ``split``."""
        return self._select(fold=given(number=number, of=of, part=part, seed=seed,
                                        by=by))

    def _select(self, **step: Any) -> "Dataset":
        (name,) = step
        call = {"repeat": "times"}.get(name, name)
        if "batch" in self._called:
            raise InvalidArgument(
                f"{call} after batch: it selects records, not batches: call it before "
                "batch")
        if name in ("take", "skip", "shard", "interleave"):
            if "shuffle" in self._called:
                raise InvalidArgument(
                    f"{call} after shuffle: it goes by the order before it: call it "
                    "before shuffle; sample(n, replacement=False) draws n records anew in "
                    "each epoch, split('a', {'a': 0.1, 'b': 0.9}) a part for all of them")
            if "repeat" in self._called:
                raise InvalidArgument(
                    f"{call} after repeat: it selects the same records of each epoch, not "
                    "of all epochs together: call it before repeat; steps_per_epoch(n) "
                    "sets the length of an epoch")
        return self._with(select=[*self._spec.get("select", []), step])

    def shuffle(self, seed: int = 0,
                each_epoch: Optional[bool] = None, *,
                window_files: Optional[int] = None) -> "Dataset":
        """Shuffles all records of an epoch, without a buffer, and wherever in the chain it
        is called: a new order every epoch, or one for all (``each_epoch=False``).
        ``window_files``: the files come in a random order, and records are shuffled
        within windows of so many of them, for storage that reads one file to its end
        faster than many in turn."""
        return self._with_step("shuffle", given(seed=seed, each_epoch=each_epoch,
                                                window_files=window_files))

    def seed(self, seed: int) -> "Dataset":
        """Sets the seed of augmentation; the shuffle's seed by default."""
        return self._with(seed=seed)

    def map(self, *operations: Mapping[str, Any]) -> "Dataset":
        """Appends operations on each row. ``penstock.python`` is for a function of
        your own. TypeError: not an operation."""
        for operation in operations:
            if not isinstance(operation, Mapping):
                raise TypeError(
                    "operations: wanted penstock.decode_image(...) and others, got "
                    f"{operation!r}; a function of your own is "
                    'penstock.python("module:function")')
        return self._with(map=[*self._spec.get("map", []), *operations])

    def cache(self, memory: Optional[Union[int, str]] = None,
              disk: Optional[Union[int, str]] = None, at: Optional[int] = None,
              zstd: Optional[int] = None,
              files: Optional[Union[int, str]] = None) -> "Dataset":
        """Keeps rows as the first ``at`` steps of ``map`` have made them, by default all
        before the first that draws random numbers or is a function (0: records as they
        are read), for all jobs of the host. ``memory`` or ``disk``: the size, in bytes or
        such as "8G". ``zstd``: the level that entries on the disk are compressed with.
        ``files``: the most that local copies of files that are compressed take, with or
        without rows. No value of a batch changes."""
        return self._with_step("cache", given(memory=memory, disk=disk, files=files, at=at,
                                              zstd=zstd))

    def snapshot(self, path: Path, at: Optional[int] = None,
                 zstd: Optional[int] = None) -> "Dataset":
        """The same in the folder ``path``, for good: written while a job takes all
        records, and read instead of them from then on. One of other data or steps is
        refused."""
        return self._with_step("snapshot", given(path=os.fspath(path), at=at, zstd=zstd))

    def batch(self, size: Optional[int] = None, *,
              per_rank: Optional[int] = None,
              by_part: Optional[Sequence[int]] = None,
              tokens: Optional[int] = None,
              tokens_per_rank: Optional[int] = None,
              buckets: Optional[Mapping[str, Any]] = None,
              pack: Optional[Mapping[str, Any]] = None,
              last: Optional[str] = None) -> "Dataset":
        """Global batches of ``size`` rows, or ``per_rank`` rows for each rank, or of a mix
        ``by_part`` rows of one part each, as ``mix`` says of parts with a batch.
        ``last``: "partial" delivers the short last batch, "drop" leaves it out,
        "pad" fills it with zeros.

        ``buckets``, which ``penstock.buckets(...)`` gives: a batch has rows of like
        length, and its lists are as wide as the longest of their bucket. Then ``tokens``
        or ``tokens_per_rank`` may stand for the number of rows: as many rows as make
        at most so many, each counted as the longest of its bucket.

        ``pack``, which ``penstock.pack(...)`` gives: each row is a sequence of several
        documents, the lists of the records."""
        return self._with_step("batch", given(
            size=size, per_rank=per_rank, by_part=by_part, tokens=tokens,
            tokens_per_rank=tokens_per_rank, buckets=buckets, pack=pack, last=last))

    def repeat(self, epochs: Optional[int] = None) -> "Dataset":
        """Sets the number of epochs; None: forever."""
        return self._with_step("repeat", "forever" if epochs is None else epochs, "epochs")

    def steps_per_epoch(self, steps: int) -> "Dataset":
        """Sets the steps of an epoch. Each epoch begins at the start of its order,
        and wraps where it has more steps than the data."""
        return self._with(steps_per_epoch=steps)

    def prefetch(self, batches: int) -> "Dataset":
        """Finished batches kept ready per rank (2); with ``hold`` it determines the
        memory."""
        return self._with(prefetch=batches)

    def hold(self, batches: int) -> "Dataset":
        """Batches a rank may hold at once (3): the loop variable, one that the loop
        keeps, and the one it asks for."""
        return self._with(hold=batches)

    def on_error(self, what: str) -> "Dataset":
        """For a record that cannot be read or decoded: "fail", "skip" it, or
        "substitute" the next readable one."""
        return self._with(on_error=what)

    def shard_policy(self, policy: str) -> "Dataset":
        """How the ranks divide the data, by tf.distribute's names: "auto" and "data"
        by rows, "file" by whole files, "off" not at all: every rank gets everything."""
        return self._with(shard=policy)

    # ---- what it is

    @property
    def name(self) -> str:
        """The key `dataset` of the spec."""
        return str(self._spec["dataset"])

    def to_dict(self) -> Dict[str, Any]:
        """The spec as plain JSON types."""
        spec: Dict[str, Any] = plain(self._spec)
        return spec

    def to_json(self) -> str:
        """The spec as JSON, which ``penstock_options.spec`` takes."""
        # Unescaped: the broker reads JSON as YAML, which has no surrogate pairs.
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_yaml(self) -> str:
        """The text of a spec file."""
        import yaml

        return str(yaml.safe_dump(self.to_dict(), sort_keys=False,
                                  default_flow_style=None, allow_unicode=True))

    def __eq__(self, other: object) -> bool:
        return (self.to_dict() == other.to_dict()
                if isinstance(other, Dataset) else NotImplemented)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"penstock.Dataset({self.to_dict()!r})"


def _check_list(parts: Any, call: str) -> None:
    if isinstance(parts, Dataset):
        raise TypeError(f"wanted a list of datasets: {call}")


def _weights_by_value(weights: Optional[Mapping[Any, float]]) -> Optional[Dict[str, float]]:
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        raise TypeError("weights: wanted a weight for each value of the column, such as "
                        f"{{3: 2.0}}, got {weights!r}")
    return {str(value): weight for value, weight in weights.items()}


def _schedule(schedule: Mapping[int, Sequence[float]]) -> List[Dict[str, Any]]:
    """The spec's list, in the order of the rows."""
    if not isinstance(schedule, Mapping) or any(
            not isinstance(weights, Sequence) and not hasattr(weights, "tolist")
            or isinstance(weights, str) for weights in schedule.values()):
        raise TypeError("schedule: wanted the weights by the row from which on they hold, "
                        f"such as {{1000: [1, 2]}}, got {schedule!r}")
    return [{"row": row, "weights": list(schedule[row])} for row in sorted(schedule)]


def _part(dataset: Dataset, *apart: str) -> Dict[str, Any]:
    """The part of a spec; ``apart``: what it may also say, which is said elsewhere."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{dataset!r} is not a Dataset; wanted a list of them")
    spec = dataset.to_dict()
    more = sorted(set(spec) - {"dataset", "source", "select", *apart})
    if more:
        raise ValueError(f"a part of a dataset has no {', '.join(more)}: say it of the "
                         "whole")
    return {key: spec[key] for key in ("source", "select") if key in spec}


def _by_part(parts: Sequence[Dataset]) -> Dict[str, Any]:
    """What a spec says of each part beside its source: maps and sizes of batches."""
    specs = [part.to_dict() for part in parts]
    said: Dict[str, Any] = {}
    if any("map" in spec for spec in specs):
        said["map_by_part"] = [spec.get("map", []) for spec in specs]
    batches = [spec.get("batch", {}) for spec in specs]
    if any(batches):
        if not all(set(batch) == {"size"} for batch in batches):
            raise ValueError("parts of a mix have a batch(size) each, or none has one; "
                             "say the rest of the whole")
        said["batch"] = {"by_part": [batch["size"] for batch in batches]}
    return said
