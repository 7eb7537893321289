// Package wire is the form in which reports travel: report.proto, and the Go
// code that is generated from it. What the messages mean stands in the proto
// file; who sends and who takes them is package report.
//
//	wire.RegisterReportsServer(grpcServer, intake)
//
// The code is made by `go generate` with protoc 7.35 (of Python's grpcio-tools),
// protoc-gen-go 1.36.12 and protoc-gen-go-grpc 1.6.2.
package wire

//go:generate python3 -m grpc_tools.protoc -I. --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative report.proto
