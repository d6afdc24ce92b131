package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	s2Basin        = "benchmark" // made by the server when it starts
	s2BufferBytes  = 1 << 20
	s2Terminal     = 0x80 // a frame with an error, the last one
	s2Compressed   = 0x60
	s2HeaderBytes  = 4
	protobufVarint = 0
	protobufBytes  = 2
)

// One stream through its own HTTP/2 connection, by sessions of S2's wire protocol (s2s/proto): a request whose body is a sequence of
// batches, and whose answer is one of acknowledgements; or an answer that is a sequence of batches. A frame is three bytes with the
// length of what follows, one with flags, and a message of Protocol Buffers.
type s2Stream struct {
	address, name string
	options       options
	client        http.Client
}

func openS2(name string, options options) (stream, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DisableCompression: true, WriteBufferSize: s2BufferBytes, ReadBufferSize: s2BufferBytes}
	return &s2Stream{options.address, name, options, http.Client{Transport: transport}}, nil
}

func (s *s2Stream) session(method, query string, body io.Reader) (*bufio.Reader, io.Closer, error) {
	request, err := http.NewRequest(method, fmt.Sprintf("http://%s/v1/streams/%s/records%s", s.address, url.PathEscape(s.name), query), body)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Content-Type", "s2s/proto")
	request.Header.Set("S2-Basin", s2Basin)
	answer, err := s.client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return nil, nil, fmt.Errorf("%s: %s", answer.Status, text)
	}
	return bufio.NewReaderSize(answer.Body, s2BufferBytes), answer.Body, nil
}

func (s *s2Stream) produce(values [][]byte, records int) error {
	inFlight := make(chan struct{}, max(1, s.options.window/s.options.batch))
	return s.append((records+s.options.batch-1)/s.options.batch, func(writer io.Writer) error {
		var frame []byte
		for sent := 0; sent < records; sent += s.options.batch {
			inFlight <- struct{}{}
			frame = s2Frame(frame, values, sent, min(s.options.batch, records-sent))
			if _, err := writer.Write(frame); err != nil {
				return err
			}
		}
		return nil
	}, func() { <-inFlight })
}

// pace sends records when they are due: after `first`, and then every `every`; it returns how long after that each was acknowledged.
func (s *s2Stream) pace(values [][]byte, records int, first time.Time, every time.Duration) ([]time.Duration, error) {
	waits := make([]time.Duration, 0, records)
	err := s.append(records, func(writer io.Writer) error {
		var frame []byte
		for sent := range records {
			time.Sleep(time.Until(first.Add(time.Duration(sent) * every)))
			frame = s2Frame(frame, values, sent, 1)
			if _, err := writer.Write(frame); err != nil {
				return err
			}
		}
		return nil
	}, func() { waits = append(waits, time.Since(first.Add(time.Duration(len(waits))*every))) })
	return waits, err
}

// append runs `write` beside a reader of acknowledgements, which come in the order of the batches, until that many have come.
func (s *s2Stream) append(batches int, write func(io.Writer) error, acknowledged func()) error {
	if batches == 0 {
		return nil
	}
	reader, writer := io.Pipe()
	answers, closer, err := s.session(http.MethodPost, "", reader)
	if err != nil {
		return err
	}
	defer closer.Close()
	failed := make(chan error, 2)
	go func() { failed <- write(writer) }()
	go func() {
		var frame []byte
		var err error
		for range batches {
			if frame, err = s2Read(answers, frame); err != nil {
				break
			}
			acknowledged()
		}
		failed <- err
	}()
	for range 2 {
		if err := <-failed; err != nil {
			return err
		}
	}
	return writer.Close()
}

func (s *s2Stream) consume(records int) (int, error) {
	batches, closer, err := s.session(http.MethodGet, fmt.Sprintf("?seq_num=0&count=%d", records), nil)
	if err != nil {
		return 0, err
	}
	defer closer.Close()
	seen, size := 0, 0
	var frame []byte
	for seen < records {
		if frame, err = s2Read(batches, frame); err != nil {
			return 0, fmt.Errorf("%s, after %d records: %w", s.name, seen, err)
		}
		err = protobufFields(frame, func(field uint64, record []byte) error {
			if field != 1 {
				return nil
			}
			seen++
			return protobufFields(record, func(field uint64, body []byte) error {
				if field == 4 {
					size += len(body)
				}
				return nil
			})
		})
		if err != nil {
			return 0, err
		}
	}
	return size, nil
}

// remove keeps the stream: the server would delete its records one by one, beside what is measured next.
func (s *s2Stream) remove() error { return nil }

func (s *s2Stream) close() { s.client.CloseIdleConnections() }

// s2Frame returns a batch of records, in the memory of the frame before.
func s2Frame(frame []byte, values [][]byte, from, count int) []byte {
	frame = append(frame[:0], 0, 0, 0, 0)
	for at := from; at < from+count; at++ {
		body := values[at%len(values)]
		length := binary.AppendUvarint(nil, uint64(len(body)))
		frame = append(frame, 1<<3|protobufBytes)
		frame = binary.AppendUvarint(frame, uint64(1+len(length)+len(body)))
		frame = append(append(append(frame, 3<<3|protobufBytes), length...), body...)
	}
	length := len(frame) - s2HeaderBytes + 1
	frame[0], frame[1], frame[2] = byte(length>>16), byte(length>>8), byte(length)
	return frame
}

// s2Read returns the message of the next frame, in the memory of the one before.
func s2Read(from *bufio.Reader, frame []byte) ([]byte, error) {
	var header [s2HeaderBytes]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return nil, err
	}
	length := int(header[0])<<16 | int(header[1])<<8 | int(header[2])
	if length == 0 {
		return nil, fmt.Errorf("a frame without flags")
	}
	if cap(frame) < length-1 {
		frame = make([]byte, length-1)
	}
	frame = frame[:length-1]
	if _, err := io.ReadFull(from, frame); err != nil {
		return nil, err
	}
	if header[3]&s2Terminal != 0 {
		return nil, fmt.Errorf("the session ended: %s", frame[min(2, len(frame)):])
	}
	if header[3]&s2Compressed != 0 {
		return nil, fmt.Errorf("a compressed frame, which was not asked for")
	}
	return frame, nil
}

// protobufFields calls `visit` for each field that is bytes or a message, and skips integers.
func protobufFields(message []byte, visit func(field uint64, value []byte) error) error {
	for len(message) > 0 {
		tag, size := binary.Uvarint(message)
		if size <= 0 {
			return fmt.Errorf("a message that ends within a tag")
		}
		number, more := binary.Uvarint(message[size:])
		if more <= 0 {
			return fmt.Errorf("a message that ends within a number")
		}
		message = message[size+more:]
		switch tag & 7 {
		case protobufVarint:
		case protobufBytes:
			if number > uint64(len(message)) {
				return fmt.Errorf("a message that ends within a field")
			}
			if err := visit(tag>>3, message[:number]); err != nil {
				return err
			}
			message = message[number:]
		default:
			return fmt.Errorf("a field of type %d", tag&7)
		}
	}
	return nil
}
