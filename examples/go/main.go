// Gives a VM an interface of weir's, from a template of its configuration, and shows what it has.
//
//	weir-vif CONTROL_SOCKET TEMPLATE NAME
//
// The package weirapi is generated from weir's description of its API: see docs/guide/clients.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"example.org/weir-vif/weirapi"
)

// dial returns a client of the weir that listens on a Unix socket. The host in the address is not used.
func dial(socket string) (*weirapi.ClientWithResponses, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		},
	}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	return weirapi.NewClientWithResponses("http://weir", weirapi.WithHTTPClient(client))
}

// refused returns weir's own words, which say what to change.
func refused(problems ...*weirapi.Problem) error {
	for _, problem := range problems {
		if problem != nil && problem.Help != nil {
			return fmt.Errorf("%s; %s", problem.Detail, *problem.Help)
		}
		if problem != nil {
			return errors.New(problem.Detail)
		}
	}
	return errors.New("an answer that the description does not have")
}

func run(socket, template, name string) error {
	weir, err := dial(socket)
	if err != nil {
		return err
	}
	ctx := context.Background()

	// The interface exists afterwards with the template's keys, whether or not it did before.
	params := &weirapi.PutVifParams{Template: &template}
	keys := strings.NewReader(`{"by": "weir-vif"}`)
	put, err := weir.PutVifWithBodyWithResponse(ctx, name, params, "application/json", keys)
	if err != nil {
		return err
	}
	if put.JSON200 == nil {
		return refused(put.JSON400, put.JSON403, put.JSON404, put.JSON409)
	}

	vif, err := weir.VifWithResponse(ctx, name)
	if err != nil {
		return err
	}
	if vif.JSON200 == nil {
		return refused(vif.JSON404)
	}
	fmt.Printf("%s: %s\n", name, put.JSON200.Outcome)
	for _, setting := range vif.JSON200.Settings {
		if setting.Value == nil {
			continue
		}
		fmt.Printf("  %s = %s (%s)\n", setting.Key, *setting.Value, setting.From)
	}
	return nil
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: weir-vif CONTROL_SOCKET TEMPLATE NAME")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "weir-vif:", err)
		os.Exit(1)
	}
}
